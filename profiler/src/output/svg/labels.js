// Labels of the boxes, in place of inferno's, which cut them at one end; the same as in label.rs. The tooltip's first line
// is the name; how much the function has stands in the parentheses at its end.
const ENDS_OF_WORDS = /(?<=[ ():;,<>])/;

function name_of(e) {
    const title = find_child(e, "title").textContent;
    const line = title.indexOf("\n");
    return line < 0 ? title.replace(/ ?\([^(]*\)$/, "") : title.substring(0, line - 1);
}

function without_directories(name) {
    let short = "";
    for (const word of name.split(ENDS_OF_WORDS)) {
        const slash = word.lastIndexOf("/");
        if (slash < 0 || !/^.+\.[^.]+$/.test(word.substring(slash + 1).replace(/[ ():;,<>]+$/, ""))) {
            short += word;
            continue;
        }
        if (word.startsWith("/") && slash > 0 && short.endsWith(":")) short = short.replace(/[a-z]*:+$/, "");
        short += word.substring(slash + 1);
    }
    return short;
}

function without_namespaces(name, room) {
    const characters = Array.from(name);
    let depth = 0, begin = 0;
    for (let i = 0; i < characters.length && characters.length - begin > room; i++) {
        const c = characters[i];
        if (c === "(" || c === "<") depth++;
        else if (c === ")" || c === ">") depth = Math.max(0, depth - 1);
        else if (depth === 0 && i >= begin && c === ":" && characters[i + 1] === ":" && i + 2 < characters.length) begin = i + 2;
    }
    return characters.slice(begin);
}

function cut(characters, room, tail) {
    if (characters.length <= room) return characters.join("");
    const kept = Math.max(0, room - 2);
    return characters.slice(0, kept - tail).join("") + ".." + characters.slice(characters.length - tail).join("");
}

function own_name(characters) {
    if (/^[(<[]/.test(characters[0])) return characters;
    const behind = characters.findIndex((c, i) => i > 0 && /[ (<[]/.test(c));
    return behind < 0 ? characters : characters.slice(0, behind);
}

function label(name, room) {
    if (Array.from(name).length <= room) return name;
    const characters = without_namespaces(without_directories(name), room);
    const own = own_name(characters), half = Math.floor(Math.max(0, room - 2) / 2);
    const in_place = /\.[\p{L}\p{N}_$]+(:[0-9]+){0,2}\)?$/u.test(characters.join(""));
    if (in_place || own.length === characters.length) return cut(characters, room, half);
    if (characters.length > room && own.length + 2 > room) return cut(own, room, half);
    return cut(characters, room, 0);
}

function update_text_for_elements(elements) {
    const width = known_font_width || fontsize * fontwidth;
    const scale = frames.attributes.width.value / 100;
    const texts = [];
    for (let i = 0; i < elements.length; i++) {
        const attributes = find_child(elements[i], "rect").attributes;
        const room = Math.floor((parseFloat(attributes.width.value) * scale - 3) / width);
        const x = format_percent(parseFloat(attributes.x.value) + 3 / scale);
        texts.push([x, room < 3 ? "" : label(name_of(elements[i]), room)]);
    }
    // All at once, so that nothing is laid out between two changes.
    for (let i = 0; i < elements.length; i++) {
        const text = find_child(elements[i], "text");
        text.attributes.x.value = texts[i][0];
        text.textContent = texts[i][1];
    }
}
