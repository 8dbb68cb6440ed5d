"use strict";
// The page of a report, as `ztensor report` writes it, as a function: it shows what #data holds.
function showReport() {
{{report}}
  return { tensors, refresh, writeFacts };
}

(() => {
  const part = (id) => document.getElementById(id);
  const bytesOf = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const url = URL.createObjectURL(new Blob([part("worker").textContent], { type: "text/javascript" }));
  const worker = new Worker(url);
  const waiting = new Map();
  let calls = 0;
  let shown = null;
  let turn = 0;

  worker.onmessage = ({ data }) => {
    part("status").dataset.reads = data.reads;
    waiting.get(data.number)?.(data.answer);
    waiting.delete(data.number);
  };

  function call(message, transfer = []) {
    calls += 1;
    const number = calls;
    return new Promise((resolve) => {
      waiting.set(number, resolve);
      worker.postMessage({ ...message, number }, transfer);
    });
  }

  async function inflated(bytes) {
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Response(stream).arrayBuffer();
  }

  const ready = inflated(bytesOf(part("module").textContent.trim())).then((module) => call({ module }, [module]));

  function fail(message) {
    part("error").textContent = message;
    part("drop").hidden = false;
    part("work").hidden = true;
    part("report").replaceChildren();
    shown = null;
  }

  async function open(file) {
    turn += 1;
    const mine = turn;
    part("error").textContent = "";
    part("status").textContent = `reading ${file.name}`;
    await ready;
    const answer = await call({ file });
    if (mine !== turn) return;
    if (!answer?.ok) {
      fail(answer?.error ?? "the file could not be read");
      return;
    }
    part("drop").hidden = true;
    part("work").hidden = false;
    part("all").hidden = false;
    part("data").textContent = JSON.stringify(answer.ok);
    part("report").replaceChildren(part("page").content.cloneNode(true));
    shown = showReport();
    const whole = (count) => count.toLocaleString("en");
    part("status").textContent = `${whole(Number(part("status").dataset.reads))} of ${whole(file.size)} bytes read for the header. Click a tensor for its histogram.`;
  }

  // Values of one tensor, once; the row that is open is drawn again by the caller.
  async function analyse(index) {
    const tensor = shown.tensors[index];
    const mine = turn;
    if (tensor.values !== undefined || tensor.pending) return;
    tensor.pending = true;
    const answer = await call({ tensor: index });
    if (mine !== turn) return;
    tensor.pending = false;
    if (answer?.ok) Object.assign(tensor, answer.ok);
    else Object.assign(tensor, { values: null, note: answer?.error ?? "It could not be read." });
  }

  async function analyseAll() {
    const mine = turn;
    part("all").hidden = true;
    part("progress").hidden = false;
    for (let index = 0; index < shown.tensors.length; index += 1) {
      await analyse(index);
      if (mine !== turn) break;
      part("progress").value = (index + 1) / shown.tensors.length;
      part("status").textContent = `${index + 1} of ${shown.tensors.length} tensors`;
    }
    part("progress").hidden = true;
    if (mine !== turn) return;
    part("facts").replaceChildren();
    shown.writeFacts();
    shown.refresh();
  }

  // A click on a row reads its tensor first, then opens the row as the report does.
  part("report").addEventListener(
    "click",
    async (event) => {
      const row = event.target.closest?.("tr.row");
      if (!row || !shown || event.isReplay) return;
      const name = row.querySelector("bdi")?.textContent;
      const index = shown.tensors.findIndex((tensor) => tensor.name === name);
      if (index < 0 || shown.tensors[index].values !== undefined) return;
      event.stopPropagation();
      part("status").textContent = `reading ${name}`;
      await analyse(index);
      part("status").textContent = "";
      shown.refresh();
      for (const other of document.querySelectorAll("tr.row")) {
        if (other.querySelector("bdi")?.textContent === name) other.click();
      }
    },
    true,
  );

  const chosen = (list) => {
    if (list.length > 1) fail("one file at a time; models in several files are shown by `ztensor report`");
    else if (list.length === 1) open(list[0]);
  };
  part("choose").addEventListener("change", (event) => chosen(event.target.files));
  part("all").addEventListener("click", analyseAll);
  part("other").addEventListener("click", () => {
    turn += 1;
    fail("");
  });
  for (const kind of ["dragenter", "dragover"]) {
    document.addEventListener(kind, (event) => {
      event.preventDefault();
      part("drop").classList.add("over");
    });
  }
  document.addEventListener("dragleave", () => part("drop").classList.remove("over"));
  document.addEventListener("drop", (event) => {
    event.preventDefault();
    part("drop").classList.remove("over");
    chosen(event.dataTransfer.files);
  });
})();
