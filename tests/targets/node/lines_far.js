// What lines.js calls, and V8 inlines there: all that runs is below the last line of that file.
'use strict';

// Never called: they only take up lines.
function unused(text) {
  const words = new Map();
  for (const word of text.split(' ')) {
    const count = words.get(word) || 0;
    words.set(word, count + 1);
  }
  return words;
}

function sorted(words) {
  const all = [...words];
  all.sort((one, other) => other[1] - one[1]);
  return all;
}

function longest(words) {
  let found = '';
  for (const [word] of words) {
    if (word.length > found.length) {
      found = word;
    }
  }
  return found;
}

function table(words) {
  const rows = sorted(words).map(([word, count]) => `${word} ${count}`);
  return rows.join('\n');
}

function report(text) {
  const words = unused(text);
  return `${longest(words)}\n${table(words)}`;
}

function mix(sum, i) {
  sum ^= sum << 13;
  sum ^= sum >>> 17;
  sum ^= sum << 5;
  return (sum + i) | 0;
}

function fold(sum) {
  let low = sum & 0xffff;
  let high = sum >>> 16;
  low = (low * 31 + high) | 0;
  return low ^ high;
}

module.exports = { fold, mix, report };
