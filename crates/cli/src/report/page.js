
"use strict";
// Everything from the file goes into the page as text nodes and attributes of drawings:
// nothing here makes markup of strings.
const data = JSON.parse(document.getElementById("data").textContent);
const tensors = data.tensors;
const byId = (id) => document.getElementById(id);

function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

function drawing(name, attributes = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

// Numbers, the way people read them.
function bytes(count) {
  let unit = 0;
  while (count >= 999.5 && unit < 5) {
    count /= 1000;
    unit += 1;
  }
  const digits = unit === 0 || count >= 99.95 ? 0 : count >= 9.995 ? 1 : 2;
  return `${count.toFixed(digits)} ${["B", "kB", "MB", "GB", "TB", "PB"][unit]}`;
}

function short(count) {
  if (count < 10000) return count.toLocaleString("en");
  let unit = -1;
  while (count >= 999.5 && unit < 3) {
    count /= 1000;
    unit += 1;
  }
  return `${count.toPrecision(3)} ${["k", "M", "B", "T"][unit]}`;
}

const whole = (count) => count.toLocaleString("en");
const percent = (share) => {
  if (share === 0) return "0 %";
  if (share < 0.0005) return "< 0.1 %";
  if (share > 0.9995 && share < 1) return "> 99.9 %";
  return `${(share * 100).toFixed(share === 1 ? 0 : 1)} %`;
};
const number = (value) => {
  if (value === 0 || (Math.abs(value) >= 1e-3 && Math.abs(value) < 1e6)) return String(Number(value.toPrecision(5)));
  return value.toExponential(3);
};

// What a tensor is, in numbers that can be compared. Absent ones come last.
const zeroShare = (tensor) => (tensor.values && tensor.values.count ? tensor.values.zeros / tensor.values.count : null);
const kept = (tensor) => (tensor.sample && tensor.sample.bytes ? tensor.sample.compressed / tensor.sample.bytes : null);

// Names in the order of their numbers: layer 10 comes after layer 9.
const named = new Intl.Collator("en", { numeric: true });

function sum(list, of) {
  return list.reduce((total, item) => total + of(item), 0);
}

function grouped(list, key, size) {
  const groups = new Map();
  for (const item of list) groups.set(key(item), (groups.get(key(item)) ?? 0) + size(item));
  return [...groups];
}

// Totals.
const total = sum(tensors, (tensor) => tensor.bytes);
const stored = sum(tensors, (tensor) => tensor.stored);
const elements = sum(tensors, (tensor) => tensor.elements);

function writeFacts() {
  byId("file").textContent = data.file;
  byId("summary").textContent = `${data.format} · ${whole(tensors.length)} tensors · ${bytes(stored)} in the file`;
  const seen = tensors.filter((tensor) => zeroShare(tensor) !== null);
  const values = sum(seen, (tensor) => tensor.values.count);
  const zeros = sum(seen, (tensor) => tensor.values.zeros);
  const odd = sum(seen, (tensor) => tensor.values.nan + tensor.values.infinite);
  const tried = tensors.filter((tensor) => kept(tensor) !== null);
  const before = sum(tried, (tensor) => tensor.bytes);
  const after = sum(tried, (tensor) => tensor.bytes * kept(tensor));
  const facts = [
    ["parameters", short(elements)],
    [stored < total ? "of tensors, decoded" : "of tensors", bytes(total)],
    ["zeros", values ? percent(zeros / values) : "–"],
    ["NaN or Inf", values ? whole(odd) : "–"],
    ["estimated z4ai saving", before ? percent(1 - after / before) : "–"],
    ["estimated packed size", before ? bytes(after + total - before) : "–"],
  ];
  if (data.bits_per_weight) facts.splice(2, 0, ["bits per weight", data.bits_per_weight.toFixed(2)]);
  for (const scheme of data.quantized) byId("schemes").append(element("li", {}, element("bdi", {}, scheme)));
  byId("quantized").hidden = !data.quantized.length;
  for (const [label, value] of facts) {
    byId("facts").append(element("div", { className: "fact" }, element("b", {}, value), element("span", {}, label)));
  }
}

// Types: the largest have a colour of their own, the rest share the last.
const types = grouped(tensors, (tensor) => tensor.dtype, (tensor) => tensor.bytes).sort((a, b) => b[1] - a[1]);
const series = new Map(types.map(([type], index) => [type, Math.min(index, 7)]));

function drawTypes() {
  const radius = 69;
  const around = 2 * Math.PI * radius;
  const picture = drawing("svg", { viewBox: "0 0 168 168", role: "img", "aria-label": "Share of each type" });
  let done = 0;
  for (const [type, size] of types) {
    const share = total ? size / total : 0;
    const gap = share < 1 && share > 0.01 ? 2 : 0;
    picture.append(
      drawing("circle", {
        cx: 84, cy: 84, r: radius, class: `s${series.get(type)}`,
        "stroke-dasharray": `${Math.max(share * around - gap, 0.4)} ${around}`,
        "stroke-dashoffset": -done * around, transform: "rotate(-90 84 84)",
      }),
    );
    done += share;
  }
  picture.append(drawing("text", { x: 84, y: 86 }, bytes(total)));
  picture.append(drawing("text", { x: 84, y: 104 }, `${whole(types.length)} ${types.length === 1 ? "type" : "types"}`));
  const legend = element("div", { className: "legend" });
  for (const [type, size] of types) {
    const button = element(
      "button", { type: "button" },
      element("i", { className: `s${series.get(type)}` }), element("bdi", {}, type),
      element("span", { className: "number quiet" }, bytes(size)),
      element("span", { className: "number" }, total ? percent(size / total) : "–"),
    );
    offer(button, "dtype", type);
    legend.append(button);
  }
  byId("types").append(picture, legend);
}

const LAYERS = 400;

// What all texts begin with, up to a separator.
function common(texts) {
  let length = texts[0].length;
  for (const text of texts) {
    while (!text.startsWith(texts[0].slice(0, length))) length -= 1;
  }
  const prefix = texts[0].slice(0, length);
  return prefix.slice(0, Math.max(prefix.lastIndexOf("."), prefix.lastIndexOf("/")) + 1);
}

function drawLayers() {
  const names = new Map();
  for (const tensor of tensors) {
    if (!names.has(tensor.layer)) names.set(tensor.layer, []);
    names.get(tensor.layer).push(tensor);
  }
  const layers = [...names].map(([name, members]) => [name, members, sum(members, (tensor) => tensor.bytes)]);
  layers.sort((a, b) => named.compare(a[0], b[0]));
  const most = layers.reduce((most, layer) => Math.max(most, layer[2]), 1);
  // What all names begin with is said once, and not on every row.
  const prefix = layers.length > 3 ? common(layers.map((layer) => layer[0])) : "";
  if (prefix) byId("layers").before(element("p", { id: "common", className: "quiet" }, element("bdi", {}, prefix), "…"));
  const longest = layers.reduce((most, layer) => Math.max(most, layer[0].length - prefix.length), 0);
  byId("layers").style.setProperty("--names", `min(${Math.max(longest, 6) + 1}ch, 40%)`);
  for (const [name, members, size] of layers.slice(0, LAYERS)) {
    const bar = drawing("svg", { role: "img", "aria-label": bytes(size) });
    // A bar is as wide as its share, so that both of its ends are round.
    bar.style.width = `${Math.max((size / most) * 100, 0.5)}%`;
    bar.style.borderRadius = "3px";
    let at = 0;
    const parts = grouped(members, (tensor) => tensor.dtype, (tensor) => tensor.bytes);
    for (const [type, part] of parts.sort((a, b) => series.get(a[0]) - series.get(b[0]))) {
      const rectangle = drawing("rect", {
        x: `${(at / Math.max(size, 1)) * 100}%`, width: `${(part / Math.max(size, 1)) * 100}%`, height: "100%", class: `s${series.get(type)}`,
      });
      rectangle.append(drawing("title", {}, `${type}: ${bytes(part)}`));
      bar.append(rectangle);
      at += part;
    }
    const shown = name.slice(prefix.length) || name;
    const cut = Math.max(shown.length - 14, 0);
    const label = element("span", {}, element("bdi", { className: "start" }, shown.slice(0, cut)), element("bdi", { className: "last" }, shown.slice(cut)));
    const row = element(
      "button", { type: "button", className: "layer", title: name },
      label, bar, element("span", { className: "number quiet" }, bytes(size)),
    );
    offer(row, "layer", name);
    byId("layers").append(row);
  }
  if (byId("layers").scrollHeight > byId("layers").clientHeight + 4) {
    const hint = element("button", { type: "button", className: "more-hint" }, `Show all ${whole(Math.min(layers.length, LAYERS))} layers`);
    hint.addEventListener("click", () => {
      byId("layers").classList.add("all");
      hint.remove();
    });
    byId("layers").append(hint);
  }
  if (layers.length > LAYERS) {
    const rest = layers.slice(LAYERS);
    const text = `and ${whole(rest.length)} more with ${bytes(sum(rest, (layer) => layer[2]))}`;
    byId("layers").append(element("p", { className: "quiet" }, text));
  }
}

// Histograms.
function outline(counts, width, height) {
  const most = Math.max(...counts, 1);
  const step = width / counts.length;
  let path = `M0 ${height}`;
  counts.forEach((count, index) => {
    // What is there is seen.
    const bar = count === 0 ? 0 : Math.max((count / most) * height, 0.6);
    path += `V${(height - bar).toFixed(2)}H${((index + 1) * step).toFixed(2)}`;
  });
  return drawing("path", { d: `${path}V${height}Z` });
}

function spark(tensor) {
  if (!tensor.values || !tensor.values.histogram) return "";
  const picture = drawing("svg", { class: "spark", viewBox: "0 0 120 24", preserveAspectRatio: "none", role: "img", "aria-label": "Histogram" });
  picture.append(outline(tensor.values.histogram.counts, 120, 24));
  return picture;
}

function plot(tensor) {
  const values = tensor.values;
  if (!values || !values.histogram) return element("p", { className: "none" }, tensor.note ?? "No numeric values.");
  const { low, high, below, above, counts } = values.histogram;
  const picture = drawing("svg", { class: "plot", viewBox: "0 0 640 170", preserveAspectRatio: "none", role: "img", "aria-label": "Histogram of all values" });
  for (const y of [1, 42.5, 85, 127.5]) picture.append(drawing("line", { x1: 0, x2: 640, y1: y, y2: y }));
  picture.append(outline(counts, 640, 168));
  const outside = below + above ? `${whole(below + above)} values outside` : "";
  const scale = element("div", { className: "scale" }, element("span", {}, number(low)), element("span", {}, outside), element("span", {}, number(high)));
  return element("div", {}, picture, scale);
}

function facts(tensor) {
  const list = element("dl");
  const add = (label, value) => list.append(element("dt", {}, label), element("dd", {}, value));
  const values = tensor.values;
  add("layout", tensor.layout === "dense" ? "dense" : `${tensor.layout} (${tensor.components.join(", ")})`);
  add("size", `${whole(tensor.bytes)} bytes`);
  if (tensor.stored !== tensor.bytes || tensor.encoding !== "raw") add("in the file", `${whole(tensor.stored)} bytes, ${tensor.encoding}`);
  if (values) {
    if (values.min !== null) {
      add("range", `${number(values.min)} to ${number(values.max)}`);
      add("mean", number(values.mean));
      add("std", number(values.deviation));
    }
    add("zero", `${whole(values.zeros)} of ${whole(values.count)}`);
    if (values.nan) add("NaN", whole(values.nan));
    if (values.infinite) add("Inf", whole(values.infinite));
  }
  if (kept(tensor) !== null) {
    const part = tensor.sample.bytes < tensor.bytes ? `, from ${bytes(tensor.sample.bytes)}` : "";
    add("compressible", `to about ${bytes(tensor.bytes * kept(tensor))} (ratio ${(1 / Math.max(kept(tensor), 1e-6)).toFixed(2)}${part})`);
  }
  return list;
}

// The table: columns, what they show and what they sort by.
function meter(share) {
  const bar = element("i");
  bar.style.width = `${Math.min(Math.max(share, 0), 1) * 100}%`;
  return element("span", { className: "share" }, bar);
}

const statistic = (tensor, what) => (tensor.values ? tensor.values[what] : null);

const columns = [
  { title: "Name", key: (tensor) => tensor.name, show: (tensor) => element("button", { type: "button" }, element("bdi", {}, tensor.name)) },
  { title: "Shape", key: (tensor) => tensor.shape.length, show: (tensor) => `[${tensor.shape.join(", ")}]`, style: "plain" },
  { title: "Type", key: (tensor) => tensor.dtype, show: (tensor) => element("bdi", {}, tensor.dtype), style: "plain" },
  { title: "Parameters", key: (tensor) => tensor.elements, show: (tensor) => whole(tensor.elements), style: "number", down: true },
  { title: "Size", key: (tensor) => tensor.bytes, show: (tensor) => bytes(tensor.bytes), style: "number", down: true },
  { title: "Zeros", key: zeroShare, show: (tensor) => (zeroShare(tensor) === null ? "–" : percent(zeroShare(tensor))), style: "number", down: true },
  {
    title: "Compressible", style: "number", down: true,
    key: (tensor) => (kept(tensor) === null ? null : 1 - kept(tensor)),
    show: (tensor) => (kept(tensor) === null ? "–" : element("span", {}, percent(1 - kept(tensor)), meter(1 - kept(tensor)))),
  },
  ...["mean", "deviation", "min", "max"].map((what) => ({
    title: what === "deviation" ? "Std" : what[0].toUpperCase() + what.slice(1), style: "number statistic", down: true,
    key: (tensor) => statistic(tensor, what),
    show: (tensor) => (statistic(tensor, what) === null ? "–" : number(statistic(tensor, what))),
  })),
  { title: "Values", key: (tensor) => (tensor.values ? tensor.values.deviation : null), show: spark, down: true },
];

const state = { order: null, down: false, filters: { dtype: null, layer: null }, shown: [], drawn: 0 };
const offers = [];
const BATCH = 150;

// A part of a chart that narrows the table to itself, and widens it again.
function offer(button, what, value) {
  offers.push({ button, what, value });
  button.addEventListener("click", () => {
    state.filters[what] = state.filters[what] === value ? null : value;
    refresh();
  });
}

function compare(a, b) {
  if (typeof a === "string") return named.compare(a, b);
  return a - b;
}

for (const tensor of tensors) {
  tensor.text = `${tensor.name} ${tensor.dtype} ${tensor.layout} ${tensor.shape.join("x")} ${tensor.shape.join(", ")}`.toLowerCase();
}

function refresh() {
  const words = byId("search").value.toLowerCase().split(/\s+/).filter(Boolean);
  const { dtype, layer } = state.filters;
  state.shown = tensors.filter(
    (tensor) =>
      (dtype === null || tensor.dtype === dtype) && (layer === null || tensor.layer === layer) &&
      words.every((word) => tensor.text.includes(word)),
  );
  if (state.order) {
    const key = state.order.key;
    const sign = state.down ? -1 : 1;
    const [there, absent] = [[], []];
    for (const tensor of state.shown) (key(tensor) === null ? absent : there).push(tensor);
    there.sort((a, b) => sign * compare(key(a), key(b)));
    state.shown = there.concat(absent);
  }
  const all = state.shown.length === tensors.length;
  const size = bytes(sum(state.shown, (tensor) => tensor.bytes));
  byId("found").textContent = all ? `${whole(tensors.length)} tensors` : `${whole(state.shown.length)} of ${whole(tensors.length)} tensors, ${size}`;
  const chips = Object.entries(state.filters).filter(([, value]) => value !== null);
  byId("filters").replaceChildren(
    ...chips.map(([what, value]) => {
      const chip = element("button", { type: "button", title: "Show all again" }, element("bdi", {}, value), " ✕");
      chip.addEventListener("click", () => {
        state.filters[what] = null;
        refresh();
      });
      return chip;
    }),
  );
  for (const { button, what, value } of offers) button.classList.toggle("pressed", state.filters[what] === value);
  byId("tensors").tBodies[0].replaceChildren();
  state.drawn = 0;
  drawMore();
}

// Rows are made as they come into view: models can have tens of thousands.
function drawMore() {
  const body = byId("tensors").tBodies[0];
  const next = state.shown.slice(state.drawn, state.drawn + BATCH);
  state.drawn += next.length;
  body.append(...next.map(row));
  if (!state.shown.length) {
    body.append(element("tr", {}, element("td", { colSpan: columns.length, className: "none" }, tensors.length ? "No tensor matches." : "The file has no tensors.")));
  }
}

function row(tensor) {
  const cells = columns.map((column) => element("td", { className: column.style ?? "" }, column.show(tensor)));
  const made = element("tr", { className: "row" }, ...cells);
  const button = cells[0].firstChild;
  button.setAttribute("aria-expanded", "false");
  let more = null;
  made.addEventListener("click", () => {
    if (more) {
      more.remove();
      more = null;
    } else {
      const detail = element("div", { className: "detail" }, plot(tensor), facts(tensor));
      more = element("tr", { className: "more" }, element("td", { colSpan: columns.length }, detail));
      made.after(more);
    }
    button.setAttribute("aria-expanded", String(more !== null));
  });
  return made;
}

function writeHead() {
  const head = byId("tensors").tHead.rows[0];
  for (const column of columns) {
    const button = element("button", { type: "button" }, column.title);
    const cell = element("th", { scope: "col", className: column.style?.includes("number") ? column.style : "" }, button);
    button.addEventListener("click", () => {
      // First in the useful direction, then in the other, then as in the file.
      const first = column.down ?? false;
      if (state.order !== column) [state.order, state.down] = [column, first];
      else if (state.down === first) state.down = !first;
      else state.order = null;
      for (const other of head.cells) other.removeAttribute("aria-sort");
      if (state.order) cell.setAttribute("aria-sort", state.down ? "descending" : "ascending");
      refresh();
    });
    head.append(cell);
  }
}

function writeMetadata() {
  const list = byId("metadata").querySelector("dl");
  for (const [name, value] of data.metadata) list.append(element("dt", {}, element("bdi", {}, name)), element("dd", {}, element("bdi", {}, value)));
  byId("metadata").hidden = data.metadata.length === 0;
}

// Light or dark: as the system says, until the reader chooses. Pages opened from a
// disk may have no memory, which is no reason to fail.
function chosenTheme(value) {
  try {
    if (value) localStorage.setItem("ztensor-theme", value);
    return localStorage.getItem("ztensor-theme");
  } catch {
    return value ?? null;
  }
}

function setTheme(theme) {
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
}

byId("theme").addEventListener("click", () => {
  const system = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  const now = document.documentElement.dataset.theme ?? system;
  const next = now === "dark" ? "light" : "dark";
  setTheme(next);
  chosenTheme(next);
});

setTheme(chosenTheme());
writeFacts();
drawTypes();
drawLayers();
writeHead();
writeMetadata();
byId("search").addEventListener("input", refresh);
byId("statistics").addEventListener("change", (event) => byId("tensors").classList.toggle("with-statistics", event.target.checked));
document.addEventListener("keydown", (event) => {
  if (event.key === "/" && event.target.tagName !== "INPUT") {
    event.preventDefault();
    byId("search").focus();
  }
});
new IntersectionObserver((entries) => {
  if (entries.some((entry) => entry.isIntersecting) && state.drawn > 0) drawMore();
}, { rootMargin: "600px" }).observe(byId("end"));
refresh();
