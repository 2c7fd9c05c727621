// The functions by CPU time: what the flamegraph shows, to be read and sorted.

import { cpu, element, percent, printable, swatch } from "./text.js";

const FIRST_ROWS = 60;

export class FunctionTable {
  // `onChoose(frame)` and `onSort(column)` are told what the user does.
  constructor(table, { onChoose, onSort }) {
    Object.assign(this, { table, onChoose, onSort, rows: FIRST_ROWS, tree: null, chosen: -1, sort: "self", wanted: null });
    this.note = document.getElementById("table-note");
  }

  show(tree, sort) {
    this.tree = tree;
    this.sort = sort;
    this.chosen = -1;
    this.draw();
  }

  clear() {
    this.tree = null;
    this.note.textContent = "";
    this.table.replaceChildren();
  }

  // Frames that pass, by number; null for all.
  filter(wanted) {
    this.wanted = wanted;
    this.draw();
  }

  choose(frame) {
    this.chosen = frame;
    for (const row of this.table.querySelectorAll("tbody tr")) row.classList.toggle("chosen", Number(row.dataset.frame) === frame);
  }

  columns() {
    const share = (field, side) => (frame) => (this.tree.cpu[side] ? frame[field][side] / this.tree.cpu[side] : 0);
    if (!this.tree.isDiff) {
      return [
        { id: "self", title: "Self", value: share("self", 0), time: (frame) => frame.self[0] },
        { id: "total", title: "Total", value: share("total", 0), time: (frame) => frame.total[0] },
      ];
    }
    const change = (field) => (frame) => share(field, 1)(frame) - share(field, 0)(frame);
    return [
      { id: "self-a", title: "Self A", value: share("self", 0) },
      { id: "self-b", title: "Self B", value: share("self", 1) },
      { id: "change", title: "Change", value: change("self"), isChange: true },
      { id: "sure", title: "Sure", value: (frame) => this.tree.sure.get(`${this.tree.kinds[frame.kind].label} ${frame.name}`) ?? 0 },
    ];
  }

  draw() {
    if (!this.tree) return;
    const columns = this.columns();
    const column = columns.find(({ id }) => id === this.sort) ?? columns.find(({ isChange }) => isChange) ?? columns[0];
    const key = column.isChange ? (frame) => Math.abs(column.value(frame)) : column.value;
    const isCode = (frame) => this.tree.kinds[frame.kind].label !== "thread" && (frame.self[0] || frame.self[1] || frame.total[0] || frame.total[1]);
    const rows = this.tree.frames.map((frame, index) => ({ frame, index }))
      .filter(({ frame, index }) => isCode(frame) && (!this.wanted || this.wanted[index]));
    rows.sort((one, other) => key(other.frame) - key(one.frame) || (one.frame.name < other.frame.name ? -1 : 1));
    this.note.textContent = `${rows.length}`;
    const body = element("tbody", {}, ...rows.slice(0, this.rows).map((row) => this.row(row, columns)));
    this.table.replaceChildren(this.head(columns, column), body);
    this.table.parentElement.querySelector(".more")?.remove();
    if (rows.length > this.rows) {
      const more = element("button", { type: "button", className: "more" }, `Show ${Math.min(200, rows.length - this.rows)} more`);
      more.addEventListener("click", () => {
        this.rows += 200;
        this.draw();
      });
      this.table.after(more);
    }
  }

  head(columns, sorted) {
    const cells = columns.map((column) => {
      const button = element("button", { type: "button" }, column.title + (column === sorted ? " ↓" : ""));
      button.addEventListener("click", () => this.onSort(column.id));
      const cell = element("th", { scope: "col" }, button);
      if (column === sorted) cell.setAttribute("aria-sort", "descending");
      return cell;
    });
    return element("thead", {}, element("tr", {}, element("th", { scope: "col", className: "text" }, "Function"), ...cells));
  }

  row({ frame, index }, columns) {
    const kind = this.tree.kinds[frame.kind];
    const name = element("button", { type: "button", className: "function", title: `${printable(frame.name)} (${kind.label})` },
      swatch(kind.color), printable(frame.name));
    name.addEventListener("click", () => this.onChoose(index));
    const cells = columns.map(({ id, value, time, isChange }) => {
      const share = value(frame);
      if (id === "sure") return element("td", { className: "muted" }, share > 0.5 ? `${(Math.floor(share * 1000) / 10).toFixed(1)} %` : "–");
      if (!isChange) return element("td", { title: time ? cpu(time(frame)) : "" }, percent(share));
      const points = `${share > 0 ? "+" : ""}${(share * 100).toFixed(2)}`;
      return element("td", { className: share > 0.0005 ? "grew" : share < -0.0005 ? "shrank" : "" }, points);
    });
    const row = element("tr", {}, element("td", { className: "text" }, name), ...cells);
    row.dataset.frame = index;
    row.classList.toggle("chosen", index === this.chosen);
    return row;
  }
}
