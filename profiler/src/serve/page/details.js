// One frame in full: numbers, place, callees, source lines.

import { cpu, element, percent, printable, swatch } from "./text.js";

const MAX_CALLEES = 30;
// What the service calls generated code that has no name.
const UNNAMED = "[JIT code without a name]";

export class Details {
  // `onZoom(node)`, `onFind(name)`, `onClose()`; `getLines(frame)` asks the service for the lines of a function,
  // `getUnnamed()` for the processes whose code has no names.
  constructor(panel, { onZoom, onFind, onClose, getLines, getUnnamed }) {
    Object.assign(this, { panel, onZoom, onFind, onClose, getLines, getUnnamed });
    this.title = document.getElementById("details-title");
    this.body = document.getElementById("details-body");
    document.getElementById("details-close").addEventListener("click", () => this.close());
  }

  close() {
    this.panel.hidden = true;
    this.onClose();
  }

  show(tree, frame, node) {
    const known = tree.frames[frame];
    const kind = tree.kinds[known.kind];
    this.title.textContent = node >= 0 ? "Frame" : "Function";
    const list = element("dl");
    const add = (name, value, isCode) => {
      if (value) list.append(element("dt", {}, name), element("dd", { className: isCode ? "code" : "" }, value));
    };
    add("name", printable(known.name), true);
    add("kind", element("span", {}, swatch(kind.color), ` ${kind.label}`));
    add("module", known.module && printable(known.module), true);
    add("source", known.file && printable(known.file) + (known.line ? `:${known.line}` : ""), true);
    tree.cpu.forEach((whole, side) => {
      const before = tree.isDiff ? `${"AB"[side]} ` : "";
      const both = (own, total) => `self ${percent(whole ? own / whole : 0)} (${cpu(own)}), total ${percent(whole ? total / whole : 0)} (${cpu(total)})`;
      if (node >= 0) add(`${before}here`, both(tree.own[side][node], tree.total[side][node]));
      add(`${before}everywhere`, both(known.self[side], known.total[side]));
    });
    const find = element("button", { type: "button" }, "Search this name");
    find.addEventListener("click", () => this.onFind(known.name));
    this.body.replaceChildren(list, find);
    if (node >= 0) this.callees(tree, node);
    if (known.name === UNNAMED) this.unnamed();
    else this.lines(tree, known, kind);
    this.panel.hidden = false;
  }

  callees(tree, node) {
    const children = tree.children(node).sort((one, other) => tree.width[other] - tree.width[one]);
    if (!children.length) return;
    const rows = children.slice(0, MAX_CALLEES).map((child) => {
      const button = element("button", { type: "button", className: "function" }, swatch(tree.kindOf(child).color), printable(tree.name(child)));
      button.addEventListener("click", () => this.onZoom(child));
      const shares = tree.cpu.map((_, side) => element("td", {}, percent(tree.share(child, side))));
      return element("tr", {}, element("td", { className: "text" }, button), ...shares);
    });
    this.body.append(element("h3", {}, "Calls"), tableOf("Callees", ["Function", ...(tree.isDiff ? ["A", "B"] : ["Total"])], rows));
  }

  // Whose code it is, and what each of them needs.
  async unnamed() {
    const asked = (this.asked = {});
    const found = await this.getUnnamed().catch(() => null);
    if (this.asked !== asked || !found?.processes.length) return;
    const list = element("dl", { className: "needs" });
    for (const { comm, pid, cpu_ns, advice, runtime, why } of found.processes) {
      const known = [runtime && `${printable(runtime)}, its own tables were read`, ...why.map((reason) => `without a name: ${printable(reason)}`)];
      list.append(element("dt", {}, `${printable(comm)} (${pid}), ${cpu(cpu_ns)}`),
        ...(advice ? [element("dd", {}, printable(advice))] : []),
        ...known.filter(Boolean).map((line) => element("dd", { className: "muted" }, line)));
    }
    if (found.more) list.append(element("dt", {}, `and ${found.more} more processes`), element("dd", {}));
    this.body.append(element("h3", {}, "Whose code has no names, and what names it"), list);
  }

  async lines(tree, known, kind) {
    if (kind.label === "thread" || kind.label === "note") return;
    const asked = (this.asked = {});
    const found = await this.getLines(known.name, kind.label).catch(() => null);
    if (this.asked !== asked || !found) return;
    const lines = found.lines.filter(({ file, line }) => file || line);
    if (!lines.length) return;
    const whole = tree.cpu[0] || 1;
    const rows = lines.map(({ file, line, self, total }) =>
      element("tr", {}, element("td", { className: "text", title: printable(file) }, `${shortFile(file)}${line ? `:${line}` : ""}`),
        element("td", {}, percent(self / whole)), element("td", {}, percent(total / whole))));
    this.body.append(element("h3", {}, tree.isDiff ? "Source lines in A" : "Source lines"), tableOf("Source lines", ["Line", "Self", "Total"], rows));
  }
}

export function tableOf(label, titles, rows) {
  const heads = titles.map((title, index) => element("th", { scope: "col", className: index ? "" : "text" }, title));
  const table = element("table", {}, element("thead", {}, element("tr", {}, ...heads)), element("tbody", {}, ...rows));
  const scroll = element("div", { className: "scroll inner", tabIndex: 0, role: "region" }, table);
  scroll.setAttribute("aria-label", label);
  return scroll;
}

// The end of a path, which tells more than its beginning.
function shortFile(file) {
  const shown = file ? printable(file) : "line";
  return shown.length > 44 ? `…${shown.slice(-43)}` : shown;
}
