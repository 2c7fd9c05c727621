// CPU time over time, stacked; a drag selects a range.

import { clock, cpu, hideTip, percent, printable, showTip } from "./text.js";

const COLORS = ["#4e79a7", "#f28e2b", "#59a14f", "#b07aa1", "#e15759", "#76b7b2", "#d9b62b", "#9c755f", "#f28ca0", "#6a9fd8", "#8cd17d"];
const REST = "#a3a8b0";
const AXIS = 18;
const LEFT = 34;
// Below this a press is no drag, in pixels.
const LEAST_DRAG = 4;
const TICKS = [5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 10800, 21600];

export class Timeline {
  // `onSelect(from, to)` is called with seconds when a range was chosen.
  constructor(box, onSelect) {
    this.box = box;
    this.canvas = box.querySelector("canvas");
    this.onSelect = onSelect;
    this.colors = new Map();
    this.data = null;
    this.ranges = { a: null, b: null };
    this.side = "a";
    box.addEventListener("pointerdown", (event) => this.press(event));
    box.addEventListener("pointermove", (event) => this.move(event));
    box.addEventListener("pointerup", (event) => this.release(event));
    box.addEventListener("pointercancel", () => this.cancel());
    box.addEventListener("pointerleave", hideTip);
    box.addEventListener("keydown", (event) => this.key(event));
    new ResizeObserver(() => this.draw()).observe(box);
  }

  // The same value keeps its colour as long as no other one of those shown has it.
  assignColors(values) {
    const taken = new Set();
    const left = values.filter((value) => {
      const color = this.colors.get(value);
      if (!color || taken.has(color)) return true;
      taken.add(color);
      return false;
    });
    for (const value of left) {
      const color = COLORS.find((free) => !taken.has(free)) ?? REST;
      taken.add(color);
      this.colors.set(value, color);
    }
  }

  // Series as they are drawn: the largest at the bottom, the rest on top.
  series() {
    if (!this.data) return [];
    const series = this.data.series.map(({ value, cpu_ns }) => ({ value, cpu_ns, color: this.colors.get(value), isRest: false }));
    const rest = this.data.rest;
    if (rest) series.push({ value: `${rest.values} more`, cpu_ns: rest.cpu_ns, color: REST, isRest: true });
    return series;
  }

  show(data, ranges, side) {
    this.data = data;
    this.ranges = ranges;
    this.side = side;
    this.assignColors(data.series.map(({ value }) => value));
    this.until = data.from + data.step * (data.series[0]?.cpu_ns.length ?? data.rest?.cpu_ns.length ?? 1);
    const range = ranges[side];
    if (range) {
      this.box.setAttribute("aria-valuemin", Math.floor(data.from));
      this.box.setAttribute("aria-valuemax", Math.ceil(this.until));
      this.box.setAttribute("aria-valuenow", Math.round(Math.min(Math.max(range.from, data.from), this.until)));
      this.box.setAttribute("aria-valuetext", `${clock(range.from)} to ${clock(range.to)}`);
    }
    this.draw();
  }

  // Samples a second at a time; what was before the oldest change that is known is not said.
  frequencyAt(time) {
    return (this.data.frequencies ?? []).findLast(([from]) => from <= time)?.[1];
  }

  timeAt(x) {
    const width = this.canvas.clientWidth - LEFT;
    const share = Math.min(1, Math.max(0, (x - LEFT) / width));
    return this.data.from + share * (this.until - this.data.from);
  }

  xOf(time) {
    const width = this.canvas.clientWidth - LEFT;
    return LEFT + ((time - this.data.from) / (this.until - this.data.from)) * width;
  }

  press(event) {
    if (!this.data || event.button !== 0) return;
    this.box.setPointerCapture(event.pointerId);
    this.drag = { x: event.offsetX, from: this.timeAt(event.offsetX), to: null };
    hideTip();
  }

  move(event) {
    if (!this.data) return;
    if (!this.drag) {
      if (event.pointerType === "mouse") this.tip(event);
      return;
    }
    const { left } = this.canvas.getBoundingClientRect();
    const x = event.clientX - left;
    if (Math.abs(x - this.drag.x) >= LEAST_DRAG) this.drag.to = this.timeAt(x);
    this.draw();
  }

  release() {
    const drag = this.drag;
    this.cancel();
    if (!drag || drag.to === null) return;
    const [from, to] = [Math.min(drag.from, drag.to), Math.max(drag.from, drag.to)];
    this.onSelect(from, Math.max(to, from + 1));
  }

  cancel() {
    this.drag = null;
    this.draw();
  }

  key(event) {
    const range = this.ranges[this.side];
    if (!this.data || !range) return;
    const step = Math.max(this.data.step, (range.to - range.from) / 4) * (event.key === "ArrowLeft" ? -1 : 1);
    if (event.key === "Escape" && this.drag) this.cancel();
    else if (event.key === "ArrowLeft" || event.key === "ArrowRight") {
      event.preventDefault();
      const from = event.shiftKey ? range.from : range.from + step;
      const to = Math.max(range.to + step, from + this.data.step);
      const late = Math.max(0, to - this.until);
      this.onSelect(Math.max(from - late, this.data.from), to - late);
    } else if (event.key === "Home" || event.key === "End") {
      event.preventDefault();
      const length = range.to - range.from;
      const from = event.key === "Home" ? this.data.from : this.until - length;
      this.onSelect(from, from + length);
    }
  }

  tip(event) {
    const index = Math.floor((this.timeAt(event.offsetX) - this.data.from) / this.data.step);
    const here = this.series().map(({ value, cpu_ns }) => [value, cpu_ns[index] ?? 0]).filter(([, ns]) => ns > 0);
    here.sort((one, other) => other[1] - one[1]);
    const all = here.reduce((sum, [, ns]) => sum + ns, 0);
    const at = this.data.from + index * this.data.step;
    const lines = [`${clock(at)}: ${(all / this.data.step / 1e9).toFixed(2)} CPUs`];
    const hertz = this.frequencyAt(at + this.data.step);
    if (hertz) lines.push(`sampled at ${hertz} Hz`);
    for (const [value, ns] of here.slice(0, 6)) lines.push(`${printable(value)}: ${cpu(ns)}, ${percent(ns / all)}`);
    showTip(event, lines);
  }

  // The frequencies that samples of a range were taken at, as words; nothing where that is not known.
  hertzIn(from, to) {
    const known = (this.data?.frequencies ?? []).filter(([since], index, all) => since < to && (all[index + 1]?.[0] ?? Infinity) > from);
    const hertz = known.map(([, value]) => value);
    if (!hertz.length) return "";
    const [least, most] = [Math.min(...hertz), Math.max(...hertz)];
    return least === most ? ` at ${most} Hz` : ` at ${least} to ${most} Hz`;
  }

  draw() {
    const { clientWidth: width, clientHeight: height } = this.box;
    const scale = devicePixelRatio || 1;
    this.canvas.width = Math.round(width * scale);
    this.canvas.height = Math.round(height * scale);
    if (!this.data || !width) return;
    const context = this.canvas.getContext("2d");
    context.scale(scale, scale);
    const style = getComputedStyle(this.box);
    const color = (name) => style.getPropertyValue(name).trim();
    const bottom = height - AXIS;
    this.drawBars(context, width, bottom, color);
    this.drawTimes(context, width, bottom, color);
    this.drawFrequencies(context, width, color);
    const dragged = this.drag?.to ? { from: Math.min(this.drag.from, this.drag.to), to: Math.max(this.drag.from, this.drag.to) } : null;
    for (const side of ["a", "b"]) {
      const range = dragged && side === this.side ? dragged : this.ranges[side];
      if (range) this.drawRange(context, range, bottom, width, color(side === "a" ? "--accent" : "--other"), side);
    }
  }

  drawBars(context, width, bottom, color) {
    const series = this.series();
    const count = series[0]?.cpu_ns.length ?? 0;
    const sums = new Float64Array(count);
    for (const { cpu_ns } of series) cpu_ns.forEach((ns, index) => (sums[index] += ns));
    const unit = this.data.step * 1e9;
    const most = Math.max(0.1, sums.reduce((max, sum) => Math.max(max, sum), 0) / unit) * 1.05;
    const y = (cpus) => bottom - (cpus / most) * (bottom - 6);
    const grid = [0.05, 0.1, 0.25, 0.5, 1, 2, 4, 8, 16, 32, 64, 128].find((step) => most / step <= 4) ?? most / 2;
    context.font = "11px system-ui, sans-serif";
    context.textAlign = "right";
    context.textBaseline = "middle";
    const fills = series.map((one) => one.color);
    const below = new Float64Array(count);
    series.forEach(({ cpu_ns }, which) => {
      context.fillStyle = fills[which];
      for (let index = 0; index < count; index++) {
        if (!cpu_ns[index]) continue;
        const left = this.xOf(this.data.from + index * this.data.step);
        const right = this.xOf(this.data.from + (index + 1) * this.data.step);
        const [low, high] = [y(below[index] / unit), y((below[index] + cpu_ns[index]) / unit)];
        context.fillRect(left, high, Math.max(0.6, right - left - (right - left > 4 ? 0.7 : 0)), low - high);
        below[index] += cpu_ns[index];
      }
    });
    for (let at = 0; at <= most; at += grid) {
      context.globalAlpha = at === 0 ? 1 : 0.45;
      context.fillStyle = color("--line");
      context.fillRect(LEFT, Math.round(y(at)), width - LEFT, 1);
      context.globalAlpha = 1;
      context.fillStyle = color("--muted");
      context.fillText(String(Number(at.toFixed(2))), LEFT - 6, y(at));
    }
  }

  // A mark wherever the frequency changed, with the new one: what is right of it stands on more samples, or fewer.
  drawFrequencies(context, width, color) {
    const known = this.data.frequencies ?? [];
    const changes = known.filter(([from], index) => index && from >= this.data.from && from < this.until);
    const first = this.frequencyAt(this.data.from) ? [this.data.from, this.frequencyAt(this.data.from)] : known[0];
    // What it was at the beginning stands there, as far as no change does.
    if (first && !changes.some(([from]) => this.xOf(from) - this.xOf(first[0]) < 48)) changes.unshift(first);
    context.textAlign = "left";
    context.fillStyle = color("--muted");
    for (const [from, hertz] of changes) {
      const x = Math.round(this.xOf(from));
      context.fillRect(x, 0, 1, 12);
      if (x < width - 36) context.fillText(`${hertz} Hz`, x + 3, 7);
    }
  }

  drawTimes(context, width, bottom, color) {
    const length = this.until - this.data.from;
    const tick = TICKS.find((step) => (length / step) * 64 < width - LEFT) ?? 43200;
    const offset = new Date(this.data.from * 1000).getTimezoneOffset() * 60;
    const first = Math.ceil((this.data.from - offset) / tick) * tick + offset;
    context.textAlign = "center";
    context.fillStyle = color("--muted");
    for (let time = first; time < this.until; time += tick) {
      const x = this.xOf(time);
      context.fillRect(Math.round(x), bottom, 1, 4);
      if (x > LEFT + 20 && x < width - 22) context.fillText(clock(time, tick < 60), x, bottom + 11);
    }
  }

  drawRange(context, { from, to }, bottom, width, color, side) {
    const left = Math.max(LEFT, this.xOf(from));
    const right = Math.min(width, Math.max(this.xOf(to), left + 2));
    if (right < LEFT || left > width) return;
    context.fillStyle = color;
    context.globalAlpha = 0.1;
    context.fillRect(left, 0, right - left, bottom);
    context.globalAlpha = 1;
    context.fillRect(left, 0, 1.5, bottom);
    context.fillRect(right - 1.5, 0, 1.5, bottom);
    context.fillRect(left, 0, right - left, 3);
    if (this.ranges.b) {
      context.textAlign = "left";
      context.font = "600 11px system-ui, sans-serif";
      context.fillText(side.toUpperCase(), left + 4, 11);
    }
  }
}
