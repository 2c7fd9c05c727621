// A caller whose optimised code V8 gives up while it waits for spin, again and again. It has inlined middle, through which
// it has called spin, and last, which comes behind that and calls spin for a moment only.
//
// node --allow-natives-syntax given_up.js [SECONDS]
'use strict';
const fs = require('fs');

let gives_up = false;
function spin(n) {
  if (gives_up) {
    gives_up = false;
    %DeoptimizeFunction(outer);
  }
  let x = 88172645;
  for (let i = 0; i < n; i++) { x ^= x << 13; x ^= x >>> 17; x ^= x << 5; }
  return x | 0;
}
function middle(n) { const r = spin(n); return (r + 1) | 0; }
function last(n) { const r = spin(n & 1); return (r + 2) | 0; }
function outer(n) {
  const first = middle(n); // outer calls middle
  return (first + last(n)) | 0;
}

// It stays a call, and is interpreted or baseline code.
spin(1);
%NeverOptimizeFunction(spin);
for (const inlined of [middle, last, outer]) %PrepareFunctionForOptimization(inlined);
for (let i = 0; i < 1000; i++) outer(10);
fs.writeSync(1, `ready pid=${process.pid}\n`);
const end = Date.now() + 1000 * Number(process.argv[2] || 4);
let sum = 0;
while (Date.now() < end) {
  %OptimizeFunctionOnNextCall(outer);
  sum ^= outer(10);
  gives_up = true;
  sum ^= outer(2000000);
}
console.log('sum', sum);
