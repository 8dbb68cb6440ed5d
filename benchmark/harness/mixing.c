/* Context mixing: the bits that symbols take under many adaptive models at once.
 *
 * Symbols are coded bit by bit from the highest. Each model has a probability per context and prefix
 * of the symbol, which moves towards what is seen by 1/n, then by a fixed rate. The logits are mixed
 * by weights that are trained as the symbols pass (logistic mixing), chosen by the prefix. Nothing is
 * known beforehand, so the sum of -log2(probability) is what an arithmetic coder would take. */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>

typedef struct { float p; float n; } Cell;

static float squash(float x) {
    if (x > 30) x = 30;
    if (x < -30) x = -30;
    return 1.0f / (1.0f + expf(-x));
}

/* contexts: models rows of count numbers, each below limits[model]. */
double mixed_bits(const uint16_t *symbols, long count, int bits, const uint32_t *contexts,
                  const uint32_t *limits, int models, float slowest, float learning) {
    long prefixes = 1L << bits;
    Cell **cells = calloc(models, sizeof *cells);
    for (int m = 0; m < models; m++) {
        cells[m] = malloc(sizeof(Cell) * prefixes * limits[m]);
        for (long i = 0; i < prefixes * (long)limits[m]; i++) cells[m][i] = (Cell){0.5f, 0};
    }
    /* Two inputs per model: the logit, and the logit weighted by how often its context was seen. */
    int inputs = 2 * models + 1;
    float *weights = malloc(sizeof(float) * prefixes * inputs);
    for (long i = 0; i < prefixes * inputs; i++) weights[i] = 0.6f / models;
    float *x = malloc(sizeof(float) * inputs);
    Cell **used = malloc(sizeof(Cell *) * models);
    double total = 0;
    for (long i = 0; i < count; i++) {
        uint32_t prefix = 1;
        for (int b = bits - 1; b >= 0; b--) {
            int bit = symbols[i] >> b & 1;
            float *w = weights + (long)prefix * inputs, dot = 0;
            for (int m = 0; m < models; m++) {
                Cell *cell = used[m] = cells[m] + (long)contexts[(long)m * count + i] * prefixes + prefix;
                float logit = logf(cell->p / (1 - cell->p));
                float sure = cell->n / (cell->n + 16);
                x[2 * m] = logit;
                x[2 * m + 1] = logit * sure;
                dot += w[2 * m] * x[2 * m] + w[2 * m + 1] * x[2 * m + 1];
            }
            x[inputs - 1] = 0.3f;
            dot += w[inputs - 1] * x[inputs - 1];
            float p = squash(dot);
            if (p < 1e-5f) p = 1e-5f;
            if (p > 1 - 1e-5f) p = 1 - 1e-5f;
            total -= log2(bit ? p : 1 - p);
            float error = (bit - p) * learning;
            for (int k = 0; k < inputs; k++) w[k] += error * x[k];
            for (int m = 0; m < models; m++) {
                Cell *cell = used[m];
                float rate = 1 / (cell->n + 1.6f);
                if (rate < slowest) rate = slowest;
                cell->p += (bit - cell->p) * rate;
                if (cell->p < 1e-4f) cell->p = 1e-4f;
                if (cell->p > 1 - 1e-4f) cell->p = 1 - 1e-4f;
                cell->n += 1;
            }
            prefix = prefix << 1 | bit;
        }
    }
    for (int m = 0; m < models; m++) free(cells[m]);
    free(cells); free(weights); free(x); free(used);
    return total;
}
