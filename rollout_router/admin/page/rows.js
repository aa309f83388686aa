// SPDX-License-Identifier: Apache-2.0
// A list of elements that follows a list of rows: patched in place by key, so that the focus and a
// selection in one survive every update.

export class Rows {
  /**
   * @param {Element} parent holds the elements and nothing else.
   * @param {(row) => string} key tells rows apart.
   * @param {() => Element} build an element without content.
   * @param {(element, row) => void} fill write a row into its element.
   */
  constructor(parent, { key, build, fill }) {
    Object.assign(this, { parent, key, build, fill });
    this.elements = new Map();
  }

  /** Show these rows, in this order, and no others. */
  show(rows) {
    const before = this.elements;
    const focusedAt = [...this.parent.children].findIndex(hasFocus);
    this.elements = new Map();
    for (const row of rows) {
      const key = this.key(row);
      const element = before.get(key) ?? this.build();
      element.row = row;
      this.fill(element, row);
      this.elements.set(key, element);
    }
    const wanted = [...this.elements.values()];
    for (const [key, element] of before) if (!this.elements.has(key)) element.remove();
    arrange(this.parent, wanted);
    if (focusedAt >= 0 && !this.parent.contains(document.activeElement)) {
      // Its row went away: whoever works with keys goes on beside it.
      wanted[Math.min(focusedAt, wanted.length - 1)]?.querySelector("a, button")?.focus();
    }
  }
}

function hasFocus(element) {
  return element.contains(document.activeElement);
}

/** Bring elements into an order without moving the one in use: a moved one loses its focus. */
function arrange(parent, wanted) {
  const anchor = document.getSelection()?.anchorNode;
  const held = wanted.find(hasFocus) ?? wanted.find((one) => anchor && one.contains(anchor));
  let next = parent.firstElementChild;
  for (const element of wanted) {
    while (element === held && next !== held) {
      const moved = next;
      next = next.nextElementSibling;
      parent.append(moved);
    }
    if (element === next) next = next.nextElementSibling;
    else parent.insertBefore(element, next);
  }
}
