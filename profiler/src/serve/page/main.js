// Wires the parts together: state -> requests -> views, and what the user does -> state.

import { Details } from "./details.js";
import { Filters, fillSelect, shownLabel } from "./filters.js";
import { FlameView } from "./flame.js";
import { Naming } from "./naming.js";
import { current, fromHash, rangeOf, sideParams, state, toHash } from "./state.js";
import { FunctionTable } from "./table.js";
import { clock, cpu, dateTime, element, parseTime, percent, printable, span, swatch } from "./text.js";
import { Timeline } from "./timeline.js";
import { Tree } from "./tree.js";

const REFRESH_MS = 5000;
// Nothing is said about loading before.
const SLOW_MS = 400;
const $ = (id) => document.getElementById(id);
const seconds = () => Date.now() / 1000 + skew;
let skew = 0;
let tree = null;
let now = 0;
let loading = null;
const running = {};

const timeline = new Timeline($("timeline"), select);
const flame = new FlameView($("flame"), { onZoom: zoomTo, onChoose: (node) => choose(tree.frame[node], node) });
const table = new FunctionTable($("functions"), { onChoose: chooseFrame, onSort: (sort) => change({ sort }, showTable) });
const details = new Details($("details"), { onZoom: (node) => { zoomTo(node); choose(tree.frame[node], node); }, onFind: search, onClose: unchoose, getLines, getUnnamed });
const naming = new Naming($("naming"), { getStatus: () => ask("naming", "/api/status", "") });
const filters = new Filters({
  onAdd: (name, value) => change(() => current().filters.push([name, value])),
  onRemove: (index) => change(() => current().filters.splice(index, 1)),
});

// Asks the service; a newer request of the same kind takes the place of an older one.
async function ask(kind, path, params) {
  running[kind]?.abort();
  const controller = (running[kind] = new AbortController());
  const response = await fetch(`${path}?${params}`, { signal: controller.signal });
  const body = await response.json().catch(() => ({ error: `the service answered ${response.status}` }));
  // It may have been here already when the newer one was sent.
  if (running[kind] !== controller) throw new DOMException("a newer request was sent", "AbortError");
  if (!response.ok) throw Object.assign(new Error(body.error), { status: response.status });
  return body;
}

function fail(error) {
  if (error.name === "AbortError") return;
  const lost = error instanceof TypeError;
  $("fault").textContent = lost ? "The service does not answer. The page tries again." : error.message;
  $("fault").hidden = false;
}

// Changes the state, shows it in the URL, and loads what it needs.
function change(what, load = loadAll) {
  if (typeof what === "function") what();
  else Object.assign(state, what);
  history.replaceState(null, "", toHash());
  load();
}

function loadAll() {
  now = seconds();
  showControls();
  return Promise.all([loadTimeline(), loadFlame()]);
}

async function loadTimeline() {
  const side = current();
  const { from, to } = rangeOf(side, now);
  // The last hours, or those around a range that lies further back.
  const end = from >= now - state.span ? now : Math.min(now, (from + to + state.span) / 2);
  const params = sideParams(new URLSearchParams(), "", { ...side, last: 0, from: end - state.span, to: end }, now);
  params.set("by", state.by);
  params.set("step", Math.max(1, Math.ceil(state.span / Math.min(240, Math.max(60, $("timeline").clientWidth / 4)))));
  try {
    const data = await ask("timeline", "/api/timeline", params);
    showTimeline(data);
    showSummary();
    if (!loading) $("fault").hidden = true;
  } catch (error) {
    fail(error);
  }
}

async function loadFlame() {
  const params = sideParams(new URLSearchParams(), "", state.a, now);
  if (state.compare) sideParams(params, "b.", state.b, now);
  params.set("group", state.group);
  if (state.reverse) params.set("reverse", 1);
  if (state.lines) params.set("lines", 1);
  if (state.merge) params.set("merge-tiers", 1);
  const load = (loading = {});
  $("flame").setAttribute("aria-busy", "true");
  const patience = setTimeout(() => { if (loading === load) $("busy").textContent = "loading…"; }, tree ? SLOW_MS : 0);
  try {
    const json = await ask("flame", state.compare ? "/api/diff" : "/api/flame", params);
    if (loading !== load) return;
    tree = new Tree(json);
    showTree();
    $("fault").hidden = true;
  } catch (error) {
    fail(error);
  } finally {
    clearTimeout(patience);
    if (loading === load) {
      loading = null;
      $("busy").textContent = "";
      $("flame").removeAttribute("aria-busy");
    }
  }
}

async function loadLabels() {
  try {
    const params = new URLSearchParams({ from: (seconds() - Math.min(state.span, 3600)).toFixed(3) });
    const { labels } = await ask("labels", "/api/labels", params);
    const names = filters.setLabels(labels);
    fillSelect($("by"), names.filter((name) => name !== "tid").map((name) => [name, shownLabel(name)]), state.by);
  } catch (error) {
    fail(error);
  }
}

function getLines(name, kind) {
  const params = sideParams(new URLSearchParams({ name, kind }), "", state.a, now);
  if (state.merge) params.set("merge-tiers", 1);
  return ask("lines", "/api/lines", params);
}

function getUnnamed() {
  return ask("unnamed", "/api/unnamed", sideParams(new URLSearchParams(), "", current(), now));
}

function showControls() {
  const side = current();
  const { from, to } = rangeOf(side, now);
  $("live").setAttribute("aria-pressed", String(Boolean(state.a.last)));
  for (const name of ["compare", "reverse", "lines", "merge"]) $(name).setAttribute("aria-pressed", String(state[name]));
  $("view").setAttribute("aria-pressed", String(state.view === "flame"));
  for (const name of ["span", "group"]) $(name).value = String(state[name]);
  fillSelect($("by"), $("by").length ? [...$("by").options].map((option) => [option.value, option.text]) : [[state.by, shownLabel(state.by)]], state.by);
  $("sides").hidden = !state.compare;
  document.querySelector(`input[name=side][value=${state.side}]`).checked = true;
  for (const one of ["a", "b"]) {
    const range = rangeOf(state[one], now);
    $(`range-${one}`).textContent = `${clock(range.from)}–${clock(range.to)}`;
  }
  if (!$("range").contains(document.activeElement)) {
    $("from").value = side.last ? `-${shortSpan(side.last)}` : dateTime(from);
    $("to").value = side.last ? "now" : dateTime(to);
  }
  if ($("search").value !== state.q) $("search").value = state.q;
  filters.show(side.filters, state.compare ? state.side : "a");
  showExports();
}

// What two sides have together is exported as a comparison; the other formats have the side that is chosen.
function showExports() {
  for (const format of ["svg", "pprof", "folded", "firefox", "text"]) {
    const params = new URLSearchParams({ format, download: 1 });
    const isComparison = state.compare && !["pprof", "firefox"].includes(format);
    sideParams(params, "", isComparison ? state.a : current(), now);
    if (isComparison) sideParams(params, "b.", state.b, now);
    if (format === "svg" && state.view === "flame") params.set("flame", 1);
    if (format === "svg" && state.reverse) params.set("reverse", 1);
    if (state.lines && ["svg", "folded", "firefox"].includes(format)) params.set("lines", 1);
    if (state.merge && ["svg", "folded"].includes(format)) params.set("merge-tiers", 1);
    $(`export-${format}`).href = `/profile?${params}`;
  }
  const side = state.side.toUpperCase();
  $("export-svg").textContent = state.compare ? "Differential flamegraph (SVG)" : "Flamegraph (SVG)";
  $("export-folded").textContent = state.compare ? "Folded stacks of both" : "Folded stacks";
  $("export-text").textContent = state.compare ? "Table of changes" : "Table of functions";
  $("export-pprof").textContent = state.compare ? `pprof of ${side}` : "pprof";
  $("export-firefox").textContent = state.compare ? `Firefox Profiler, ${side}` : "Firefox Profiler";
}

function shortSpan(length) {
  return length % 3600 === 0 ? `${length / 3600}h` : length % 60 === 0 ? `${length / 60}m` : `${length}s`;
}

function showTimeline(data) {
  timeline.show(data, { a: rangeOf(state.a, now), b: state.compare ? rangeOf(state.b, now) : null }, state.compare ? state.side : "a");
  const sums = timeline.series().map((series) => ({ ...series, ns: series.cpu_ns.reduce((sum, ns) => sum + ns, 0) }));
  const all = sums.reduce((sum, { ns }) => sum + ns, 0) || 1;
  $("series").replaceChildren(...sums.map(({ value, color, ns, isRest }) => {
    const name = element("span", { className: "name" }, isRest ? value : printable(value || `no ${state.by}`));
    const number = element("span", { className: "number" }, percent(ns / all));
    if (isRest || !value) return element("li", {}, element("span", { className: "plain" }, swatch(color), name, number));
    const button = element("button", { type: "button", title: `Only ${printable(value)}` }, swatch(color), name, number);
    button.addEventListener("click", () => toggleFilter(state.by, value));
    return element("li", {}, button);
  }));
}

function toggleFilter(name, value) {
  change(() => {
    const list = current().filters;
    const index = list.findIndex(([n, v]) => n === name && v === value);
    if (index >= 0) list.splice(index, 1);
    else list.push([name, value]);
  });
}

function showTree() {
  // With nothing on one side everything would be new, or gone: there is nothing to compare.
  const without = ["A", "B"].filter((_, side) => tree.cpu[side] === 0);
  const isEmpty = without.length > 0;
  $("empty").hidden = !isEmpty;
  $("flame").hidden = isEmpty;
  $("empty").textContent = tree.isDiff
    ? `Nothing was sampled on side ${without.join(" and on side ")} by what its filters let through, so there is nothing to compare.`
    : "Nothing was sampled in this range by what the filters let through.";
  showSummary();
  flame.inverted = state.view === "flame";
  flame.show(tree, tree.find(state.zoom));
  showCrumbs();
  showKinds();
  showTable();
  showSearch();
  if (isEmpty) table.clear();
}

function showSummary() {
  // What is shown may be older than what was asked for.
  if (!tree || tree.isDiff !== state.compare) return;
  const { from, to } = rangeOf(state.a, now);
  const range = (one) => `${clock(one.from)} – ${clock(one.to)}`;
  $("summary").textContent = state.compare
    ? `A ${range({ from, to })}, ${cpu(tree.cpu[0])} · B ${range(rangeOf(state.b, now))}, ${cpu(tree.cpu[1])}`
    : `${range({ from, to })} (${span(to - from)}) · ${cpu(tree.cpu[0])} of CPU · ${tree.samples[0].toLocaleString("en")} samples${timeline.hertzIn(from, to)}`;
}

function showTable() {
  table.show(tree, state.sort);
}

function showCrumbs() {
  const path = [];
  for (let node = flame.zoom; node >= 0; node = tree.parent[node]) path.unshift(node);
  const shown = path.length ? [-1, ...path] : [];
  $("crumbs").replaceChildren(...shown.map((node) => {
    const button = element("button", { type: "button" }, printable(tree.name(node)));
    button.addEventListener("click", () => zoomTo(node));
    return element("li", {}, button);
  }));
  $("crumbs").scrollLeft = $("crumbs").scrollWidth;
}

function showKinds() {
  if (tree.isDiff) {
    const words = [["#ea6a52", "more in B"], ["#e8e3df", "same share"], ["#6499e6", "less in B"]];
    $("kinds").replaceChildren(...words.map(([color, text]) => element("li", {}, element("span", { className: "plain" }, swatch(color), text))));
    return;
  }
  const used = new Set(tree.frames.map(({ kind }) => kind));
  $("kinds").replaceChildren(...tree.kinds.map((kind, index) => [kind, index]).filter(([, index]) => used.has(index)).map(([{ label, color }]) => {
    const button = element("button", { type: "button", title: `Find all ${label} frames` }, swatch(color), label);
    button.setAttribute("aria-pressed", String(state.kind === label));
    button.addEventListener("click", () => change({ kind: state.kind === label ? "" : label }, () => { showKinds(); showSearch(); }));
    return element("li", {}, button);
  }));
}

// Frames whose name has the text, or fits the /expression/, and whose kind is the chosen one.
function wanted() {
  if (!state.q && !state.kind) return null;
  const text = state.q.toLowerCase();
  let fits = (name) => name.toLowerCase().includes(text);
  const expression = /^\/(.+)\/$/.exec(state.q);
  if (expression) {
    try {
      const pattern = new RegExp(expression[1], "i");
      fits = (name) => pattern.test(name);
    } catch {
      return tree.frames.map(() => false);
    }
  }
  return tree.frames.map(({ name, kind }) => fits(name) && (!state.kind || tree.kinds[kind].label === state.kind));
}

function showSearch() {
  const lit = wanted();
  flame.light(lit);
  table.filter(lit);
  const shares = lit && tree.sharesOf(lit);
  $("found").textContent = !shares ? "" : tree.isDiff ? `A ${percent(shares[0])}, B ${percent(shares[1])}` : percent(shares[0]);
}

function search(q) {
  $("search").value = q;
  change({ q }, showSearch);
}

function zoomTo(node) {
  change({ zoom: node < 0 ? [] : tree.pathOf(node) }, () => {});
  flame.zoomTo(node);
  showCrumbs();
}

function choose(frame, node) {
  table.choose(frame);
  details.show(tree, frame, node);
}

// From the table: the function lights up wherever it stands.
function chooseFrame(frame) {
  table.choose(frame);
  flame.light(tree.frames.map((_, index) => index === frame));
  const node = tree.widestOf(frame);
  if (node >= 0) flame.go(node);
  details.show(tree, frame, -1);
}

function unchoose() {
  table.choose(-1);
  showSearch();
}

function select(from, to) {
  change(() => Object.assign(current(), { last: 0, from, to }));
}

function toggleCompare() {
  change(() => {
    state.compare = !state.compare;
    state.zoom = [];
    if (!state.compare) return;
    // At first the range before is compared with the chosen one.
    const { from, to } = rangeOf(state.a, seconds());
    state.b = { last: 0, from, to, filters: state.a.filters.map((filter) => [...filter]) };
    Object.assign(state.a, { last: 0, from: from - (to - from), to: from });
    state.side = "b";
  });
}

function toggleLive() {
  change(() => {
    const { from, to } = rangeOf(state.a, now);
    Object.assign(state.a, state.a.last ? { last: 0, from, to } : { last: 300, from: 0, to: 0 });
  });
}

function bind() {
  $("live").addEventListener("click", toggleLive);
  $("compare").addEventListener("click", toggleCompare);
  $("view").addEventListener("click", () => change({ view: state.view === "flame" ? "icicle" : "flame" }, () => {
    showControls();
    flame.setInverted(state.view === "flame");
  }));
  for (const name of ["reverse", "lines", "merge"]) $(name).addEventListener("click", () => change({ [name]: !state[name], zoom: [] }));
  $("span").addEventListener("change", () => change({ span: Number($("span").value) }));
  $("by").addEventListener("change", () => change({ by: $("by").value }));
  $("group").addEventListener("change", () => change({ group: $("group").value, zoom: [] }));
  for (const radio of document.querySelectorAll("input[name=side]")) radio.addEventListener("change", () => change({ side: radio.value }));
  $("search").addEventListener("input", () => change({ q: $("search").value }, showSearch));
  $("range").addEventListener("submit", (event) => {
    event.preventDefault();
    const [from, to] = ["from", "to"].map((id) => parseTime($(id).value, seconds()));
    if (from === null || to === null || from >= to) return fail(new Error("The range needs two times, such as 03:12 and 03:20, or -15m and now."));
    document.activeElement.blur();
    if ($("to").value.trim() === "now") change(() => Object.assign(current(), { last: Math.round(to - from), from: 0, to: 0 }));
    else select(from, to);
  });
  $("link").addEventListener("click", copyLink);
  for (const item of document.querySelectorAll("#export a")) item.addEventListener("click", () => { $("export").open = false; });
  addEventListener("hashchange", () => { fromHash(location.hash); loadAll(); });
  addEventListener("keydown", key);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { timeline.draw(); flame.ask(); });
}

async function copyLink() {
  const url = new URL(toHash(now), location.href).href;
  history.replaceState(null, "", url);
  const done = await navigator.clipboard?.writeText(url).then(() => true, () => false);
  $("link").textContent = done ? "Copied" : "In the address bar";
  setTimeout(() => { $("link").textContent = "Copy link"; }, 1500);
}

function key(event) {
  const isTyping = event.target.matches("input, select, textarea");
  if (event.key === "Escape") {
    if ($("export").open) {
      $("export").open = false;
      $("export").querySelector("summary").focus();
    } else if (event.target === $("search") && state.q) {
      event.preventDefault();
      search("");
    } else if (!isTyping && !$("details").hidden && event.target !== $("flame")) details.close();
    return;
  }
  if (isTyping || event.ctrlKey || event.metaKey || event.altKey) return;
  const shortcuts = { "/": () => $("search").focus(), l: toggleLive, c: toggleCompare, i: () => $("view").click(), r: () => $("reverse").click(), m: () => $("merge").click() };
  const shortcut = shortcuts[event.key];
  if (shortcut) {
    event.preventDefault();
    shortcut();
  }
}

async function refresh() {
  const isFollowing = state.a.last || (state.compare && state.b.last);
  // A slow answer is not asked for again before it is there.
  if (!document.hidden && !loading) {
    now = seconds();
    await loadTimeline();
    naming.load();
    if (isFollowing && !timeline.drag && !loading) {
      showControls();
      await loadFlame();
    }
  }
  setTimeout(refresh, REFRESH_MS);
}

async function start() {
  fromHash(location.hash);
  bind();
  try {
    const status = await ask("status", "/api/status", "");
    skew = status.now - Date.now() / 1000;
    $("host").textContent = printable(status.host);
    document.title = `jitprof: ${printable(status.host)}`;
  } catch (error) {
    fail(error);
  }
  await Promise.all([loadAll(), loadLabels()]);
  setInterval(loadLabels, 30000);
  setTimeout(refresh, REFRESH_MS);
}

start();
