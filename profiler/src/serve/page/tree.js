// The flamegraph's data as typed arrays. Nodes come in pre-order: callers before callees, siblings by name.

export class Tree {
  constructor(json) {
    this.cpu = json.cpu_ns;
    this.samples = json.samples;
    this.kinds = json.kinds;
    this.isDiff = json.cpu_ns.length === 2;
    // How sure it is that a function's own share changed, where it is known.
    this.sure = new Map((json.changes ?? []).map((change) => [`${change.kind} ${change.name}`, change.self_confidence]));
    const strings = json.strings;
    const { frames, nodes } = json;
    this.frames = frames.name.map((name, index) => ({
      name: strings[name], kind: frames.kind[index], module: strings[frames.module[index]],
      file: strings[frames.file[index]], line: frames.line[index],
      self: [frames.self[index], frames.self_b?.[index] ?? 0], total: [frames.total[index], frames.total_b?.[index] ?? 0],
    }));
    const count = nodes.depth.length;
    this.count = count;
    this.depth = Uint16Array.from(nodes.depth);
    this.frame = Uint32Array.from(nodes.frame);
    this.own = [Float64Array.from(nodes.self), Float64Array.from(nodes.self_b ?? [])];
    this.total = [Float64Array.from(nodes.total), Float64Array.from(nodes.total_b ?? [])];
    this.layOut();
  }

  // Shares of the whole: x and width of each node, its parent, where its subtree ends, and the nodes of each level.
  layOut() {
    const { count, depth } = this;
    this.x = new Float64Array(count);
    this.width = new Float64Array(count);
    this.parent = new Int32Array(count).fill(-1);
    this.end = new Int32Array(count).fill(count);
    const path = [];
    const cursor = [0];
    const sizes = [];
    for (let node = 0; node < count; node++) {
      const level = depth[node];
      while (path.length > level) this.end[path.pop()] = node;
      this.parent[node] = level > 0 ? path[level - 1] : -1;
      this.width[node] = this.shareOf(node);
      this.x[node] = cursor[level];
      cursor[level] += this.width[node];
      cursor[level + 1] = this.x[node];
      path.push(node);
      sizes[level] = (sizes[level] ?? 0) + 1;
    }
    this.levels = sizes.map((size) => new Int32Array(size));
    const filled = new Array(sizes.length).fill(0);
    for (let node = 0; node < count; node++) this.levels[depth[node]][filled[depth[node]]++] = node;
  }

  // A node is as wide as its share; in a comparison as the mean of both shares, so what is new or gone shows.
  shareOf(node) {
    if (!this.isDiff) return this.share(node, 0);
    const present = this.cpu.filter((cpu) => cpu > 0).length || 1;
    return (this.share(node, 0) + this.share(node, 1)) / present;
  }

  share(node, side) {
    const whole = this.cpu[side];
    if (!whole) return 0;
    return (node < 0 ? whole : this.total[side][node]) / whole;
  }

  ownShare(node, side) {
    return this.cpu[side] ? this.own[side][node] / this.cpu[side] : 0;
  }

  name(node) {
    return node < 0 ? "all" : this.frames[this.frame[node]].name;
  }

  kindOf(node) {
    return this.kinds[this.frames[this.frame[node]].kind];
  }

  // From -1 (gone in B) to 1 (new in B): the change of the share against the larger one.
  change(node) {
    const [a, b] = [this.share(node, 0), this.share(node, 1)];
    return Math.max(a, b) > 0 ? (b - a) / Math.max(a, b) : 0;
  }

  children(node) {
    const found = [];
    const end = node < 0 ? this.count : this.end[node];
    for (let child = node + 1; child < end; child = this.end[child]) found.push(child);
    return found;
  }

  // The widest node of a frame.
  widestOf(frame) {
    let widest = -1;
    for (let node = 0; node < this.count; node++) {
      if (this.frame[node] === frame && (widest < 0 || this.width[node] > this.width[widest])) widest = node;
    }
    return widest;
  }

  // Shares of stacks in which a frame of the set stands, each stack once.
  sharesOf(wanted) {
    const sums = [0, 0];
    for (let node = 0; node < this.count; ) {
      if (wanted[this.frame[node]]) {
        sums[0] += this.share(node, 0);
        if (this.isDiff) sums[1] += this.share(node, 1);
        node = this.end[node];
      } else {
        node++;
      }
    }
    return sums;
  }

  // A path as hashes of its names, short enough for a link, and back to the deepest node that is still there.
  pathOf(node) {
    const path = [];
    for (let at = node; at >= 0; at = this.parent[at]) path.unshift(hash(this.name(at)));
    return path;
  }

  find(path) {
    let node = -1;
    for (const wanted of path) {
      const next = this.children(node).find((child) => hash(this.name(child)) === wanted);
      if (next === undefined) break;
      node = next;
    }
    return node;
  }
}

// FNV-1a of 32 bits.
export function hash(text) {
  let value = 0x811c9dc5;
  for (let index = 0; index < text.length; index++) value = Math.imul(value ^ text.charCodeAt(index), 0x01000193);
  return (value >>> 0).toString(36);
}
