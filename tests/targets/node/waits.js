// Waits for ever below three functions.
"use strict";

const { writeSync } = require("node:fs");

function waits(cell) {
  return Atomics.wait(cell, 0, 0);
}

function holds(cell) {
  return `${waits(cell)}`;
}

function begins(cell) {
  return `${holds(cell)}`;
}

const cell = new Int32Array(new SharedArrayBuffer(4));
writeSync(1, `ready pid=${process.pid}\n`);
begins(cell);
