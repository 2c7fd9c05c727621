// Makes and drops functions, so that V8 frees code space and uses its addresses again (690 times in 5 s with Node 20).
//
// node --perf-prof --expose-gc gc.js [SECONDS [CALLS [KEPT]]]      each is called CALLS times; KEPT are made between collections
'use strict';
const fs = require('fs');

function make(i) {
  return new Function('n', `let x = ${i};
    for (let i = 0; i < n; i++) { x ^= x << 13; x ^= x >>> 17; x ^= x << 5; x += ${i}; }
    return x | 0; //# sourceURL=gen_${i}.js`);
}

fs.writeSync(1, `ready pid=${process.pid}\n`);
const [seconds, calls, kept] = [6, 400, 200].map((usual, i) => Number(process.argv[2 + i] || usual));
const end = Date.now() + 1000 * seconds;
let made = 0, sum = 0;
while (Date.now() < end) {
  const f = make(made++);
  for (let k = 0; k < calls; k++) sum ^= f(300);
  if (made % kept === 0 && global.gc) global.gc();
}
console.log('functions', made, 'sum', sum);
