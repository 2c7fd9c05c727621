// A function of several lines, optimised, with others of this file and of a longer one inlined; `sort` calls it.
//
// node --perf-prof lines.js [SECONDS]
'use strict';
const { fold, mix } = require('./lines_far.js');

function near(sum) {
  sum += 7;
  return sum ^ (sum >>> 3);
}

function work(n, seed) {
  let sum = seed;
  for (let i = 0; i < n; i++) {
    sum = mix(sum, i);
    sum = (sum * 3) | 0;
    sum = near(sum);
    sum ^= i;
    sum += fold(sum);
  }
  return sum;
}

// Compiled again and again, for no two are alike: V8 writes what it says of a function only with what comes behind it.
let count = 0;
const body = 'let sum = 0; for (let i = 0; i < n; i++) sum = (sum * 7 + i) | 0; return sum;';

function drive(until) {
  let sum = 1;
  while (Date.now() < until) {
    for (let k = 0; k < 20; k++) {
      sum ^= [5000, 5001].sort(work)[0];
    }
    sum ^= new Function('n', `${body} // ${count++}`)(20000);
  }
  return sum;
}

require('fs').writeSync(1, `ready pid=${process.pid}\n`);
console.log('sum', drive(Date.now() + 1000 * Number(process.argv[2] || 6)));
