// Small helpers around the document. The page makes its elements one by one and reads no text as HTML.

export const $ = (id) => document.getElementById(id);

/** An element with this text and these properties. */
export function el(tag, text, properties = {}) {
  const element = Object.assign(document.createElement(tag), properties);
  if (text !== undefined) element.textContent = text;
  return element;
}

/** A button that calls `act` with itself. `label` is what a screen reader says where `text` is a sign. */
export function button(text, act, { label, ...properties } = {}) {
  const element = el("button", text, { type: "button", ...properties });
  if (label) {
    element.setAttribute("aria-label", label);
    element.title = label;
  }
  element.addEventListener("click", () => act(element));
  return element;
}

/** Makes `old` look like `made`. Nodes that both have stay, so that a selection in them does too. */
export function morph(old, made) {
  for (const { name } of [...old.attributes]) if (!made.hasAttribute(name)) old.removeAttribute(name);
  for (const { name, value } of made.attributes) {
    if (old.getAttribute(name) === value) continue;
    // The page's policy refuses styles as attributes.
    if (name === "style") old.style.cssText = made.style.cssText;
    else old.setAttribute(name, value);
  }
  let at = old.firstChild;
  for (const child of [...made.childNodes]) {
    const next = at?.nextSibling;
    if (!at) old.append(child);
    else if (at.nodeType === Node.TEXT_NODE && child.nodeType === Node.TEXT_NODE) growText(at, child.data);
    else if (at.nodeName === child.nodeName && at.nodeType === Node.ELEMENT_NODE) morph(at, child);
    else at.replaceWith(child);
    at = next;
  }
  for (; at;) {
    const next = at.nextSibling;
    at.remove();
    at = next;
  }
}

/** Sets the data of a text node. Text that only grows keeps a selection in it. */
export function growText(node, data) {
  if (data.startsWith(node.data)) {
    if (data.length > node.data.length) node.appendData(data.slice(node.data.length));
  } else {
    node.data = data;
  }
}

/** Copies a text; whether it worked. Browsers have no `navigator.clipboard` where a page comes by plain HTTP. */
export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    /* the way below works everywhere */
  }
  const focused = document.activeElement;
  const selection = getSelection();
  const selected = selection.rangeCount > 0 ? selection.getRangeAt(0) : null;
  const area = el("textarea", undefined, { value: text, className: "unseen", readOnly: true });
  document.body.append(area);
  area.select();
  const copied = document.execCommand("copy");
  area.remove();
  if (selected) {
    selection.removeAllRanges();
    selection.addRange(selected);
  }
  focused?.focus();
  return copied;
}

/** Copies a text and says on the button whether it worked. */
export async function copyBy(element, text) {
  const name = element.textContent;
  element.textContent = (await copy(text)) ? "Copied" : "Select it and press Ctrl+C";
  setTimeout(() => {
    element.textContent = name;
  }, 1500);
}

let hiding;

/** Shows a notice for some seconds, with an action where there is one. */
export function notify(text, { name, act } = {}) {
  const notice = $("notice");
  clearTimeout(hiding);
  notice.replaceChildren(el("span", text));
  if (act)
    notice.append(
      button(name, () => {
        hideNotice();
        act();
      }),
    );
  notice.append(button("×", hideNotice, { label: "Close this notice" }));
  notice.hidden = false;
  hiding = setTimeout(hideNotice, 12_000);
}

function hideNotice() {
  $("notice").hidden = true;
}

/** Gives the reader a file with this text. */
export function download(name, text) {
  const address = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  el("a", undefined, { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 60_000);
}
