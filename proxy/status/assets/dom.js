// Elements, made and changed. Whatever the server says goes in as text, never as markup.

export const byId = (id) => document.getElementById(id);

/** Make an element: `given` are properties (`class`, `data` and aria attributes as such), then its children. */
export function make(tag, given = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(given)) {
    if (name === "class") made.className = value;
    else if (name.includes("-") || name === "role" || name === "scope") made.setAttribute(name, value);
    else made[name] = value;
  }
  made.append(...children);
  return made;
}

/** Put a text in, if it is another one: what stays isn't touched, so nothing is selected or read anew. */
export function say(element, text) {
  const words = String(text);
  if (element.textContent !== words) element.textContent = words;
}

export function label(element, text) {
  if (element.getAttribute("aria-label") !== text) element.setAttribute("aria-label", text);
}

/** Let a parent have as many children as there are values, and show each value in its child. */
export function each(parent, values, create, show) {
  while (parent.children.length > values.length) parent.lastElementChild.remove();
  values.forEach((value, place) => {
    if (!parent.children[place]) parent.append(create());
    show(parent.children[place], value, place);
  });
}

/** Make a table's row: a heading, and so many cells of numbers. */
export const row = (numbers, ...heading) =>
  make("tr", {}, make("th", { scope: "row" }, ...heading),
    ...Array.from({ length: numbers }, () => make("td", { class: "num" })));

/** Put texts into an element's children. */
export const fill = (parent, texts) => texts.forEach((text, place) => say(parent.children[place], text));

/** Return a function that draws only when what it is given has changed. */
export function whenChanged(draw) {
  let last;
  return (value) => {
    const now = JSON.stringify(value);
    if (now !== last) draw(value);
    last = now;
  };
}

/** Take a number's text and unit apart, so that the unit can stand back. */
export function figure(element, [number, unit]) {
  const whole = unit ? `${number}\u00a0${unit}` : number;
  if (element.textContent === whole) return;
  element.replaceChildren(number, ...(unit ? ["\u00a0", make("span", { class: "unit" }, unit)] : []));
}
