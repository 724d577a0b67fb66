// Markdown as elements. `marked` cuts the text into tokens, `highlight.js` colours code, `temml` lays out maths; no
// library writes HTML here. This file makes each element itself, from a fixed list, so HTML in an answer stays text.

import highlight from "./vendor/highlight.js";
import { Marked } from "./vendor/marked.js";
import temml from "./vendor/temml.js";
import { el, morph } from "./dom.js";

// No formula is longer than this: what is never closed would be searched to its end again and again.
const BLOCK_MATHS = /^ {0,3}(?:\$\$([\s\S]{1,5000}?)\$\$|\\\[([\s\S]{1,5000}?)\\\])[ \t]*(?:\n|$)/;
// As in pandoc, a dollar sign opens maths before anything but space and closes it unless a digit follows: prices stay.
const INLINE_MATHS =
  /^(?:\$\$([^$]{1,5000}?)\$\$|\\\[([\s\S]{1,5000}?)\\\]|\\\(([\s\S]{1,5000}?)\\\)|\$(?=\S)((?:\\[^\n]|[^$\\\n])+?)(?<=\S)\$(?!\d))/;

const marked = new Marked({ gfm: true, breaks: true });
marked.use({
  extensions: [
    {
      name: "blockMaths",
      level: "block",
      start: (source) => {
        const at = source.search(/\n {0,3}(?:\$\$|\\\[)/);
        return at < 0 ? undefined : at + 1;
      },
      tokenizer: (source) => mathsToken("blockMaths", BLOCK_MATHS.exec(source)),
    },
    {
      name: "inlineMaths",
      level: "inline",
      start: (source) => {
        const at = source.search(/\$|\\[[(]/);
        return at < 0 ? undefined : at;
      },
      tokenizer: (source) => mathsToken("inlineMaths", INLINE_MATHS.exec(source)),
    },
  ],
});

function mathsToken(type, found) {
  if (!found) return undefined;
  const [raw, ...texts] = found;
  return { type, raw, text: texts.find((text) => text !== undefined).trim() };
}

/** Text in Markdown, in an element that follows the text as it grows: blocks that are finished keep their nodes. */
export class MarkdownView {
  constructor(element) {
    this.element = element;
    this.blocks = []; // what is shown: the raw text of each block, and its node
    this.settled = ""; // text before the last block, which is not read again while the text grows
    this.settledBlocks = 0;
  }

  /** Shows the text. One that `isWhole` is read from its beginning, because links may be defined at its end. */
  update(text, isWhole) {
    text = text.replaceAll(/\r\n?/g, "\n");
    if (isWhole || !text.startsWith(this.settled)) {
      this.settled = "";
      this.settledBlocks = 0;
    }
    const tokens = marked.lexer(text.slice(this.settled.length));
    const hasLinks = isWhole && Object.keys(tokens.links ?? {}).length > 0;
    const last = tokens.findLastIndex((token) => isShown(token));
    let at = this.settledBlocks;
    for (const [index, token] of tokens.entries()) {
      if (index === last) this.settledBlocks = at;
      if (index < last) this.settled += token.raw;
      if (isShown(token)) this.#show(at++, token, hasLinks);
    }
    for (const { node } of this.blocks.splice(at)) node.remove();
  }

  #show(at, token, hasLinks) {
    const old = this.blocks[at];
    if (old?.raw === token.raw && !hasLinks) return;
    let node = block(token);
    if (!old) {
      this.element.append(node);
    } else if (old.node.nodeName === node.nodeName) {
      morph(old.node, node);
      node = old.node;
    } else {
      old.node.replaceWith(node);
    }
    this.blocks[at] = { raw: token.raw, node };
  }
}

const isShown = (token) => token.type !== "space" && token.type !== "def";

function block(token) {
  switch (token.type) {
    case "heading":
      return filled(el(`h${Math.min(token.depth + 1, 6)}`), token.tokens, inline);
    case "paragraph":
      return filled(el("p"), token.tokens, inline);
    case "blockquote":
      return filled(el("blockquote"), token.tokens.filter(isShown), block);
    case "list":
      return list(token);
    case "code":
      return code(token);
    case "table":
      return table(token);
    case "hr":
      return el("hr");
    case "blockMaths":
      return maths(token, true);
    case "text":
    case "checkbox":
      return filled(el("span"), token.tokens ?? [token], inline);
    // HTML, and whatever else there may be: as it was written.
    default:
      return el("p", token.raw.trimEnd(), { className: "raw" });
  }
}

function filled(element, tokens, make) {
  element.append(...tokens.map(make));
  return element;
}

function inline(token) {
  switch (token.type) {
    case "text":
      return token.tokens ? filled(el("span"), token.tokens, inline) : document.createTextNode(entities(token.text));
    case "escape":
      return document.createTextNode(token.text);
    case "strong":
    case "em":
    case "del":
      return filled(el(token.type), token.tokens, inline);
    case "codespan":
      return el("code", token.text);
    case "br":
      return el("br");
    case "link":
      return link(token.href, filled(el("a"), token.tokens, inline));
    // An image would be a request to somewhere else: its address is shown, and the reader may open it.
    case "image":
      return link(token.href, el("a", token.text || token.href));
    case "checkbox":
      return el("input", undefined, { type: "checkbox", checked: token.checked, disabled: true, ariaLabel: "done" });
    case "inlineMaths":
      return maths(token, token.raw.startsWith("$$") || token.raw.startsWith("\\["));
    case "html":
      if (/^<br\s*\/?>$/i.test(token.raw)) return el("br");
  }
  return document.createTextNode(token.raw);
}

const ENTITIES = {
  amp: "&",
  lt: "<",
  gt: ">",
  quot: '"',
  apos: "'",
  nbsp: "\u00a0",
  ndash: "–",
  mdash: "—",
  hellip: "…",
  times: "×",
  minus: "−",
  plusmn: "±",
  le: "≤",
  ge: "≥",
  ne: "≠",
  rarr: "→",
  larr: "←",
  deg: "°",
  middot: "·",
  copy: "©",
  euro: "€",
};

function entities(text) {
  return text.replaceAll(/&(?:#(\d{1,7})|#x([\da-f]{1,6})|(\w{2,8}));/gi, (whole, decimal, hex, name) => {
    const code = decimal ? Number(decimal) : hex ? parseInt(hex, 16) : 0;
    if (name) return Object.hasOwn(ENTITIES, name) ? ENTITIES[name] : whole;
    return code > 0 && code <= 0x10ffff ? String.fromCodePoint(code) : whole;
  });
}

/** Gives a link its address where it leads to another site or to a mail; a link of any other kind is only text. */
function link(href, element) {
  let address;
  try {
    address = new URL(href);
  } catch {
    /* relative: it would lead into this server */
  }
  if (!address || !["http:", "https:", "mailto:"].includes(address.protocol)) {
    const text = el("span", undefined, { className: "no-link", title: href });
    text.append(...element.childNodes);
    return text;
  }
  return Object.assign(element, {
    href: address.href,
    target: "_blank",
    rel: "noopener noreferrer",
    title: address.href,
  });
}

function list(token) {
  const items = token.items.map((item) => {
    const blocks = item.tokens.filter(isShown);
    return filled(el("li", undefined, { className: item.task ? "task" : "" }), blocks, block);
  });
  const element = el(
    token.ordered ? "ol" : "ul",
    undefined,
    token.ordered && token.start !== 1 ? { start: token.start } : {},
  );
  element.append(...items);
  return element;
}

function table(token) {
  const row = (cells, tag) => {
    const element = el("tr");
    element.append(
      ...cells.map((cell) => filled(el(tag, undefined, { className: cell.align ?? "" }), cell.tokens, inline)),
    );
    return element;
  };
  const head = el("thead");
  head.append(row(token.header, "th"));
  const body = el("tbody");
  body.append(...token.rows.map((cells) => row(cells, "td")));
  const element = el("table");
  element.append(head, body);
  // It scrolls alone where it is wider than the window.
  const frame = el("div", undefined, { className: "table", tabIndex: 0 });
  frame.append(element);
  return frame;
}

/** Most characters of a block of code that is coloured: colouring more would hold up the page. */
const COLOURED_MAX = 50_000;

function code(token) {
  const language = (token.lang ?? "").trim().split(/\s/)[0];
  const head = el("div", undefined, { className: "code-head" });
  head.append(
    el("span", language || "text"),
    el("button", "Copy", { type: "button", className: "copy-code", ariaLabel: "Copy this code" }),
  );
  const text = el("code");
  if (highlight.getLanguage(language) && token.text.length <= COLOURED_MAX) {
    const { _emitter: tree } = highlight.highlight(token.text, { language, ignoreIllegals: true });
    text.append(...tree.rootNode.children.map(coloured));
  } else {
    text.textContent = token.text;
  }
  const pre = el("pre", undefined, { tabIndex: 0 });
  pre.append(text);
  const element = el("div", undefined, { className: "code" });
  element.append(head, pre);
  return element;
}

function coloured(node) {
  if (typeof node === "string") return document.createTextNode(node);
  const kinds = (node.scope ?? "")
    .replace(/^language:.*/, "")
    .split(".")
    .filter(Boolean);
  return filled(
    el("span", undefined, { className: kinds.map((kind, at) => (at === 0 ? `hl-${kind}` : `${kind}_`)).join(" ") }),
    node.children,
    coloured,
  );
}

/** TeX as MathML; as it was written where it cannot be read. */
function maths(token, isDisplay) {
  try {
    const tree = temml.__renderToMathMLTree(token.text, {
      displayMode: isDisplay,
      throwOnError: true,
      trust: false,
      maxExpand: 500,
      maxSize: [20, 50],
    });
    const element = mathsNode(tree);
    element.setAttribute("aria-label", token.text);
    if (!isDisplay) return element;
    const frame = el("div", undefined, { className: "maths", tabIndex: 0 });
    frame.append(element);
    return frame;
  } catch {
    return el(isDisplay ? "pre" : "code", token.raw.trimEnd());
  }
}

const MATHML = "http://www.w3.org/1998/Math/MathML";
const words = (text) => new Set(text.trim().split(/\s+/));
const MATHS_ELEMENTS = words(`
  math mrow mi mn mo ms mtext mspace mfrac msqrt mroot mstyle merror mpadded mphantom menclose msub msup msubsup munder
  mover munderover mmultiscripts mprescripts none mtable mtr mtd`);
const MATHS_ATTRIBUTES = words(`
  display displaystyle scriptlevel mathvariant accent accentunder fence form largeop lspace rspace maxsize minsize
  movablelimits separator stretchy symmetric linethickness columnalign columnspan rowspan rowspacing columnspacing
  columnlines rowlines depth height width voffset notation`);

/** A node of temml's tree as one of the document: text, an element of MathML, or only its children. */
function mathsNode(node) {
  if (typeof node.text === "string") return document.createTextNode(node.text);
  const children = (node.children ?? []).map(mathsNode);
  if (node.type === undefined) return filledWith(document.createDocumentFragment(), children);
  const element = document.createElementNS(MATHML, MATHS_ELEMENTS.has(node.type) ? node.type : "mrow");
  for (const [name, value] of Object.entries(node.attributes ?? {})) {
    if (MATHS_ATTRIBUTES.has(name)) element.setAttribute(name, value);
  }
  if (node.classes?.length) element.setAttribute("class", node.classes.join(" "));
  Object.assign(element.style, node.style);
  return filledWith(element, children);
}

function filledWith(element, children) {
  element.append(...children);
  return element;
}
