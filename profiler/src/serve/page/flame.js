// The flamegraph: a canvas as large as what can be seen of it, redrawn when something changes.

import { cpu, hideTip, percent, printable, showTip } from "./text.js";

const ROW = matchMedia("(pointer: coarse)").matches ? 24 : 19;
// Narrower frames are drawn as one grey stretch, in pixels.
const LEAST = 0.7;
const ZOOM_MS = 160;
const CALM = matchMedia("(prefers-reduced-motion: reduce)");

export class FlameView {
  // `onZoom(node)` and `onChoose(node)` are told what the user does; node -1 is the root.
  constructor(box, { onZoom, onChoose }) {
    this.box = box;
    this.canvas = box.querySelector("canvas");
    this.room = box.querySelector(".room");
    this.said = document.getElementById("said");
    Object.assign(this, { onZoom, onChoose, tree: null, zoom: -1, focus: -1, hover: -2, inverted: false, lit: null });
    this.from = 0;
    this.to = 1;
    this.asked = false;
    this.shades = new Map();
    box.addEventListener("scroll", () => this.ask());
    box.addEventListener("pointermove", (event) => this.move(event));
    box.addEventListener("pointerleave", () => this.leave());
    box.addEventListener("click", (event) => this.click(event));
    box.addEventListener("keydown", (event) => this.key(event));
    box.addEventListener("focus", () => this.ask());
    box.addEventListener("blur", () => this.ask());
    new ResizeObserver(() => this.resize()).observe(box);
  }

  show(tree, zoom) {
    const focused = this.tree && this.focus >= 0 ? this.tree.pathOf(this.focus) : [];
    this.tree = tree;
    this.focus = tree.find(focused);
    this.hover = -2;
    this.zoom = zoom;
    [this.from, this.to] = this.rangeOf(zoom);
    // Upside down, rows are counted from the bottom, and a deeper stack must not push them away.
    const { scrollTop, scrollHeight } = this.box;
    this.resize();
    if (this.inverted) this.box.scrollTop = scrollTop + this.box.scrollHeight - scrollHeight;
    if (zoom >= 0) this.keepLevel(zoom);
  }

  setInverted(inverted) {
    this.inverted = inverted;
    this.resize();
    this.box.scrollTop = inverted ? this.box.scrollHeight : 0;
  }

  // Frames that stand out, by their number; null for all alike.
  light(lit) {
    this.lit = lit;
    this.ask();
  }

  rangeOf(node) {
    return node < 0 ? [0, 1] : [this.tree.x[node], this.tree.x[node] + this.tree.width[node]];
  }

  zoomTo(node) {
    this.zoom = node;
    if (node >= 0) this.keepLevel(node);
    const [from, to] = this.rangeOf(node);
    const [fromBefore, toBefore] = [this.from, this.to];
    const begin = performance.now();
    cancelAnimationFrame(this.animation);
    const step = (now) => {
      const share = CALM.matches ? 1 : Math.min(1, Math.max(0, (now - begin) / ZOOM_MS));
      const eased = 1 - (1 - share) ** 3;
      this.from = fromBefore + (from - fromBefore) * eased;
      this.to = toBefore + (to - toBefore) * eased;
      this.draw();
      if (share < 1) this.animation = requestAnimationFrame(step);
    };
    this.animation = requestAnimationFrame(step);
  }

  resize() {
    const levels = (this.tree?.levels.length ?? 0) + 1;
    const seen = this.box.clientHeight;
    this.room.style.height = `${Math.max(levels * ROW, seen)}px`;
    this.canvas.style.height = `${seen}px`;
    this.box.style.setProperty("--seen", `${seen}px`);
    this.ask();
  }

  ask() {
    if (this.asked) return;
    this.asked = true;
    requestAnimationFrame(() => {
      this.asked = false;
      this.draw();
    });
  }

  // The upper edge of a level (0 is the root) within the canvas.
  yOf(level) {
    const height = this.room.clientHeight;
    return (this.inverted ? height - (level + 1) * ROW : level * ROW) - this.box.scrollTop;
  }

  levelAt(y) {
    const all = y + this.box.scrollTop;
    return Math.floor((this.inverted ? this.room.clientHeight - all : all) / ROW);
  }

  // The first node of a level that ends right of x.
  firstAfter(nodes, x) {
    let [low, high] = [0, nodes.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      const node = nodes[middle];
      if (this.tree.x[node] + this.tree.width[node] > x) high = middle;
      else low = middle + 1;
    }
    return low;
  }

  nodeAt(x, y) {
    const level = this.levelAt(y);
    if (!this.tree || level < 0 || level > this.tree.levels.length) return -2;
    if (level === 0) return -1;
    const nodes = this.tree.levels[level - 1];
    const at = this.from + (x / this.canvas.clientWidth) * (this.to - this.from);
    const node = nodes[this.firstAfter(nodes, at)];
    return node !== undefined && this.tree.x[node] <= at ? node : -2;
  }

  draw() {
    const width = this.box.clientWidth;
    const height = this.box.clientHeight;
    const scale = devicePixelRatio || 1;
    const [wide, high] = [Math.round(width * scale), Math.round(height * scale)];
    if (this.canvas.width !== wide || this.canvas.height !== high) Object.assign(this.canvas, { width: wide, height: high });
    if (!this.tree || !width) return;
    const context = this.canvas.getContext("2d");
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.clearRect(0, 0, width, height);
    const style = getComputedStyle(this.box);
    this.paint = { line: style.getPropertyValue("--canvas-line"), text: style.getPropertyValue("--frame-text"), accent: style.getPropertyValue("--accent"), muted: style.getPropertyValue("--muted") };
    context.font = `11.5px ${style.getPropertyValue("--mono")}`;
    context.textBaseline = "middle";
    this.letter = context.measureText("0").width;
    const levels = this.tree.levels.length;
    for (let level = 0; level <= levels; level++) {
      const y = this.yOf(level);
      if (y > -ROW && y < height) this.drawLevel(context, level, y, width);
    }
  }

  drawLevel(context, level, y, width) {
    if (level === 0) {
      this.drawBar(context, -1, 0, y, width, "#c9cdd4", 1);
      return;
    }
    const { x, width: widths } = this.tree;
    const nodes = this.tree.levels[level - 1];
    const unit = width / (this.to - this.from);
    let narrow = null;
    const flush = () => {
      if (!narrow) return;
      context.globalAlpha = 0.5;
      context.fillStyle = this.paint.muted;
      context.fillRect(narrow.from, y + 1, Math.max(0.4, narrow.to - narrow.from), ROW - 2);
      context.globalAlpha = 1;
      narrow = null;
    };
    for (let index = this.firstAfter(nodes, this.from); index < nodes.length; index++) {
      const node = nodes[index];
      if (x[node] >= this.to) break;
      const left = Math.max(0, (x[node] - this.from) * unit);
      const right = Math.min(width, (x[node] + widths[node] - this.from) * unit);
      if (right - left < LEAST) {
        if (narrow && left - narrow.to > 1) flush();
        narrow = { from: narrow?.from ?? left, to: right };
        continue;
      }
      flush();
      const isLit = !this.lit || this.lit[this.tree.frame[node]];
      this.drawBar(context, node, left, y, right - left, this.colorOf(node), isLit ? 1 : 0.22);
    }
    flush();
  }

  drawBar(context, node, left, y, width, color, alpha) {
    context.globalAlpha = alpha;
    context.fillStyle = color;
    context.fillRect(left, y + 0.5, Math.max(LEAST, width - (width > 3 ? 0.8 : 0)), ROW - 1);
    const isFocus = node === this.focus && document.activeElement === this.box;
    if (isFocus || node === this.hover) {
      context.globalAlpha = 1;
      context.strokeStyle = isFocus ? this.paint.accent : this.paint.text;
      context.lineWidth = isFocus ? 2 : 1;
      context.strokeRect(left + 1, y + 1.5, Math.max(1, width - 2.8), ROW - 3);
    }
    const letters = Math.floor((width - 7) / this.letter);
    if (letters >= 3) {
      // Faded frames show the page's ground, on which the frames' dark text would not be read.
      context.fillStyle = alpha < 1 ? this.paint.muted : this.paint.text;
      context.globalAlpha = 1;
      const name = printable(this.tree.name(node));
      context.fillText(fitted(name, letters), left + 4, y + ROW / 2 + 0.5);
    }
    context.globalAlpha = 1;
  }

  colorOf(node) {
    const { tree } = this;
    if (tree.isDiff) {
      // By the change of the share: red grew, blue shrank, pale stayed.
      const change = tree.change(node);
      const level = Math.min(4, Math.floor(Math.abs(change) * 5));
      return (change > 0 ? ["#e8e3df", "#f9cdbc", "#f7a98d", "#f1866a", "#ea6a52"] : ["#e8e3df", "#c9daf2", "#a3c2ee", "#7facea", "#6499e6"])[level];
    }
    const frame = tree.frame[node];
    const { name, kind } = tree.frames[frame];
    const key = `${kind} ${name}`;
    let shade = this.shades.get(key);
    if (!shade) {
      shade = shaded(tree.kinds[kind].color, name);
      if (this.shades.size > 50000) this.shades.clear();
      this.shades.set(key, shade);
    }
    return shade;
  }

  describe(node) {
    const { tree } = this;
    const lines = [printable(tree.name(node))];
    tree.cpu.forEach((whole, side) => {
      const total = node < 0 ? whole : tree.total[side][node];
      const own = node < 0 ? 0 : tree.own[side][node];
      const before = tree.isDiff ? `${"AB"[side]}: ` : "";
      const self = own > 0 ? `, self ${percent(own / whole)}` : "";
      lines.push(`${before}${percent(whole ? total / whole : 0)}, ${cpu(total)}${self}`);
    });
    if (node < 0) return lines;
    if (tree.isDiff) {
      const points = (tree.share(node, 1) - tree.share(node, 0)) * 100;
      lines.push(`change: ${points > 0 ? "+" : ""}${points.toFixed(2)} points`);
    }
    const { file, line, module } = tree.frames[tree.frame[node]];
    const place = file ? printable(file) + (line ? `:${line}` : "") : "";
    lines.push([tree.kindOf(node).label, place].filter(Boolean).join(" · "));
    if (module) lines.push(printable(module));
    return lines;
  }

  move(event) {
    const node = this.nodeAt(event.offsetX, event.clientY - this.canvas.getBoundingClientRect().top);
    if (node !== this.hover) {
      this.hover = node;
      this.ask();
    }
    if (node >= -1 && event.pointerType === "mouse") showTip(event, this.describe(node));
    else hideTip();
  }

  leave() {
    this.hover = -2;
    hideTip();
    this.ask();
  }

  click(event) {
    const { left, top } = this.canvas.getBoundingClientRect();
    const node = this.nodeAt(event.clientX - left, event.clientY - top);
    if (node < -1) return;
    hideTip();
    this.focus = node;
    this.onZoom(node);
    if (node >= 0) this.onChoose(node);
  }

  key(event) {
    if (!this.tree || event.ctrlKey || event.metaKey || event.altKey) return;
    const keys = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, this.inverted ? 1 : -1], ArrowDown: [0, this.inverted ? -1 : 1] };
    const move = keys[event.key];
    if (move) this.go(this.neighbour(...move));
    else if (event.key === "Home") this.go(-1);
    else if (event.key === "Enter" || event.key === " ") {
      this.onZoom(this.focus);
      if (this.focus >= 0) this.onChoose(this.focus);
    } else if (event.key === "Escape" && this.zoom >= 0) {
      this.onZoom(this.tree.parent[this.zoom]);
    } else return;
    event.preventDefault();
  }

  // The sibling beside the focus, its caller, or its widest callee.
  neighbour(across, down) {
    const { tree, focus } = this;
    if (down > 0) {
      const widest = tree.children(focus).reduce((one, other) => (one < 0 || tree.width[other] > tree.width[one] ? other : one), -1);
      return widest < 0 ? focus : widest;
    }
    if (focus < 0) return focus;
    if (down < 0) return tree.parent[focus];
    const level = tree.levels[tree.depth[focus]];
    const index = this.firstAfter(level, tree.x[focus] + tree.width[focus] / 2);
    return level[index + across] ?? focus;
  }

  go(node) {
    this.focus = node;
    if (node >= 0) this.keepInSight(node);
    this.said.textContent = this.describe(node).join(", ");
    this.ask();
  }

  keepInSight(node) {
    const [from, to] = this.rangeOf(node);
    if (to <= this.from || from >= this.to) this.onZoom(-1);
    this.keepLevel(node);
  }

  // Scrolls so far that a frame's row can be seen.
  keepLevel(node) {
    const y = this.yOf(this.tree.depth[node] + 1);
    if (y < 0) this.box.scrollTop += y - ROW;
    else if (y + ROW > this.box.clientHeight) this.box.scrollTop += y + 2 * ROW - this.box.clientHeight;
  }
}

// A name in so many letters. Where there is room for both, the middle is left out: the end says which file it is.
function fitted(name, letters) {
  if (name.length <= letters) return name;
  const end = letters >= 24 && /[/:]/.test(name) ? Math.floor(letters * 0.45) : 0;
  return `${name.slice(0, letters - end - 1)}…${end ? name.slice(-end) : ""}`;
}

// A shade near a kind's colour, the same for a name every time.
function shaded(color, name) {
  let value = 0x811c9dc5;
  for (let index = 0; index < name.length; index++) value = Math.imul(value ^ name.charCodeAt(index), 0x01000193);
  const shift = (((value >>> 8) & 0xff) / 255 - 0.5) * 26;
  const channels = [1, 3, 5].map((at) => parseInt(color.slice(at, at + 2), 16));
  return `rgb(${channels.map((channel) => Math.round(Math.min(255, Math.max(0, channel + shift)))).join(" ")})`;
}
