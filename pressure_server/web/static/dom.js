// Elements built by calls. Data only ever become text nodes, so nothing in a message or a name is markup.

/** Return an element. `properties` are attributes, `on…` listeners, and `class`; null leaves one out. */
export function h(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  append(element, children);
  return element;
}

function append(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
}

/** Replace the content of an element. */
export function fill(element, ...children) {
  element.replaceChildren();
  append(element, children);
}

/** Let an element have these children, in this order. Those that stay keep their focus. */
export function arrange(element, children) {
  const focused = element.contains(document.activeElement) ? document.activeElement : null;
  const kept = new Set(children);
  for (const child of [...element.children]) if (!kept.has(child)) child.remove();
  children.forEach((child, at) => {
    if (element.children[at] !== child) element.insertBefore(child, element.children[at] || null);
  });
  // A child that moves loses the focus.
  if (focused?.isConnected && document.activeElement !== focused) focused.focus({ preventScroll: true });
}

/** Return a function that fills an element, but only if what it shows has changed. */
export function keeper(element) {
  let shown;
  return (value, make) => {
    const text = JSON.stringify(value);
    if (text === shown) return;
    shown = text;
    fill(element, make(value));
  };
}
