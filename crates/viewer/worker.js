"use strict";
// Runs the WebAssembly module off the page's thread, where files can be read synchronously by ranges.
let file = null;
let wasm = null;
let reads = 0;
const reader = new FileReaderSync();

const host = {
  read(offset, pointer, length) {
    try {
      const start = Number(offset);
      const bytes = new Uint8Array(reader.readAsArrayBuffer(file.slice(start, start + length)));
      if (bytes.length !== length) return 1;
      new Uint8Array(wasm.exports.memory.buffer, pointer, length).set(bytes);
      reads += length;
      return 0;
    } catch {
      return 1;
    }
  },
};

function result(length) {
  const start = wasm.exports.result();
  return JSON.parse(new TextDecoder().decode(new Uint8Array(wasm.exports.memory.buffer, start, length)));
}

function open(opened) {
  file = opened;
  reads = 0;
  const name = new TextEncoder().encode(file.name);
  const place = wasm.exports.name(name.length);
  new Uint8Array(wasm.exports.memory.buffer, place, name.length).set(name);
  return result(wasm.exports.open(BigInt(file.size)));
}

let module = null;

onmessage = async ({ data }) => {
  let answer;
  try {
    if (data.module) module = await WebAssembly.compile(data.module);
    // A fresh instance for every file: nothing of the last one stays, its memory included.
    if (data.file) wasm = await WebAssembly.instantiate(module, { host });
    if (data.file) answer = open(data.file);
    if (data.tensor !== undefined) answer = result(wasm.exports.tensor(data.tensor));
  } catch (error) {
    answer = { error: `the reader stopped: ${error.message}` };
  }
  postMessage({ number: data.number, answer, reads });
};
