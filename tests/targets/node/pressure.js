// burn.js under the collector: outer -> middle -> leafHot (75 %), outer -> sideCold -> leafCold (25 %), where all but the
// leaves are closures that are made anew for each call, and garbage is made all the time: V8 moves functions while they run.
//
// node --no-turbo-inlining pressure.js [SECONDS]
'use strict';
const fs = require('fs');

function leafHot(n) {
  let x = 88172645, kept = [];
  for (let i = 0; i < n; i++) {
    x ^= x << 13; x ^= x >>> 17; x ^= x << 5;
    if ((i & 63) === 0) kept = [kept.length, { x }];
  }
  return x | kept.length;
}
function leafCold(n) {
  let x = 12345678, kept = [];
  for (let i = 0; i < n; i++) {
    x ^= x << 13; x ^= x >>> 17; x ^= x << 5;
    if ((i & 63) === 0) kept = [kept.length, { x }];
  }
  return x | kept.length;
}
function make() {
  function middle(n) { const r = leafHot(n * 3); return (r + 1) | 0; }
  function sideCold(n) { const r = leafCold(n); return (r + 1) | 0; }
  return function outer(n) { return (middle(n) + sideCold(n)) | 0; };
}

fs.writeSync(1, `ready pid=${process.pid}\n`);
const end = Date.now() + 1000 * Number(process.argv[2] || 4);
let sum = 0, noise = 1, old = [];
while (Date.now() < end) {
  noise = (Math.imul(noise, 1103515245) + 12345) & 0x7fffffff;
  sum ^= make()(2000 + (noise >> 8) % 36001);
  // Some live long enough to be moved to the old generation, and are dropped there.
  old.push(make());
  if (old.length > 20000) old = old.slice(10000);
}
console.log('sum', sum);
