// What is shown. All of it is in the URL behind the #, so a link reproduces the view.

const DEFAULTS = { span: 3600, by: "comm", group: "comm", view: "icicle", reverse: false, lines: false, merge: false, q: "", kind: "", sort: "self" };

// A side is a range and filters. A range is the last so many seconds (`last`), or from one second to another.
const side = () => ({ last: 300, from: 0, to: 0, filters: [] });

export const state = { ...DEFAULTS, compare: false, side: "a", a: side(), b: side(), zoom: [] };

export function rangeOf(side, now) {
  return side.last ? { from: now - side.last, to: now } : { from: side.from, to: side.to };
}

// The side that a drag and the filters change.
export function current() {
  return state.compare ? state[state.side] : state.a;
}

function writeSide(params, prefix, side, now) {
  if (side.last && now === undefined) {
    params.set(`${prefix}last`, side.last);
  } else {
    const { from, to } = rangeOf(side, now);
    params.set(`${prefix}from`, from.toFixed(1));
    params.set(`${prefix}to`, to.toFixed(1));
  }
  for (const [name, value] of side.filters) params.append(`${prefix}f`, `${name}:${value}`);
}

function readSide(params, prefix) {
  const read = side();
  const number = (name) => Number(params.get(`${prefix}${name}`));
  const [from, to, last] = ["from", "to", "last"].map(number);
  if (from > 0 && to > from) Object.assign(read, { last: 0, from, to });
  else if (last > 0) read.last = last;
  for (const filter of params.getAll(`${prefix}f`)) {
    const colon = filter.indexOf(":");
    if (colon > 0) read.filters.push([filter.slice(0, colon), filter.slice(colon + 1)]);
  }
  return read;
}

// With a time for now, ranges that follow the present are fixed to it: for a link.
export function toHash(now) {
  const params = new URLSearchParams();
  for (const [name, value] of Object.entries(DEFAULTS)) {
    if (state[name] !== value) params.set(name, state[name]);
  }
  writeSide(params, "", state.a, now);
  if (state.compare) {
    params.set("compare", state.side);
    writeSide(params, "b.", state.b, now);
  }
  if (state.zoom.length) params.set("zoom", state.zoom.join("."));
  return `#${params}`;
}

export function fromHash(hash) {
  const params = new URLSearchParams(hash.replace(/^#/, ""));
  for (const [name, value] of Object.entries(DEFAULTS)) {
    const given = params.get(name);
    if (given === null) state[name] = value;
    else if (typeof value === "number") state[name] = Number(given) > 0 ? Number(given) : value;
    else state[name] = typeof value === "boolean" ? given === "true" : given;
  }
  state.compare = params.has("compare");
  state.side = params.get("compare") === "b" ? "b" : "a";
  state.a = readSide(params, "");
  state.b = state.compare ? readSide(params, "b.") : side();
  state.zoom = (params.get("zoom") ?? "").split(".").filter(Boolean);
}

// Range and filters of a side as parameters of a request.
export function sideParams(params, prefix, side, now) {
  const { from, to } = rangeOf(side, now);
  params.set(`${prefix}from`, from.toFixed(3));
  params.set(`${prefix}to`, to.toFixed(3));
  for (const [name, value] of side.filters) params.append(`${prefix}label.${name}`, value);
  return params;
}
