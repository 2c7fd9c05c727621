// 20,000 functions, each of a source of its own, called in turns: leaf_0 to leaf_19999.
//
// node many.js [SECONDS [FUNCTIONS]]
'use strict';

const seconds = Number(process.argv[2] ?? 4);
const count = Number(process.argv[3] ?? 20000);
const leaves = Array.from({ length: count }, (_, i) =>
  new Function('n', `return function leaf_${i}(n) {
    let x = ${i + 1};
    for (let i = 0; i < n; i++) { x ^= x << 13; x ^= x >>> 17; x ^= x << 5; }
    return x;
  };`)());

function all(n) {
  let sum = 0;
  for (const leaf of leaves) sum ^= leaf(n);
  return sum;
}

// Called so often, each has code of its own instead of the interpreter's.
let sum = 0;
for (let i = 0; i < 40; i++) sum ^= all(400);
console.log(`ready pid=${process.pid}`);
const end = Date.now() + seconds * 1000;
while (Date.now() < end) sum ^= all(400);
if (sum === 42) console.log(sum);
