"""The page at /docs: one piece of HTML that reads /openapi.json and asks no other host for anything."""

import base64
import hashlib
from collections.abc import Mapping
from typing import Final

_STYLE: Final = """
:root { color-scheme: light dark; --line: light-dark(#d8d8d8, #3a3a3a); --soft: light-dark(#f4f4f4, #222); }
* { box-sizing: border-box; }
body { font: 16px/1.5 system-ui, sans-serif; margin: 0 auto; padding: 1rem; max-width: 56rem; }
h1 { font-size: 1.5rem; margin: 0 0 .25rem; }
h2 { font-size: 1.05rem; margin: 1.25rem 0 .5rem; }
p { margin: .25rem 0; }
code, pre { font-family: ui-monospace, monospace; font-size: .875rem; overflow-wrap: anywhere; }
details { border: 1px solid var(--line); border-radius: .5rem; margin: .5rem 0; padding: 0 .75rem; }
details details { background: var(--soft); }
summary { cursor: pointer; padding: .6rem 0; }
summary b { display: inline-block; min-width: 4rem; text-transform: uppercase; font-size: .8rem; }
summary small { display: block; opacity: .75; }
dl { margin: .25rem 0 .75rem; }
dt { border-top: 1px solid var(--line); padding-top: .35rem; }
dd { margin: 0 0 .35rem; opacity: .85; font-size: .9rem; }
"""
_SCRIPT: Final = """
'use strict';
const main = document.querySelector('main');
const add = (to, tag, text) => {
  const made = to.appendChild(document.createElement(tag));
  if (text !== undefined) made.textContent = text;
  return made;
};
const fold = (to, title) => {
  const box = add(to, 'details');
  add(box, 'summary', title);
  return box;
};
let schemas = {};
const found = ref => schemas[ref.slice(ref.lastIndexOf('/') + 1)] || {};
const kind = schema => {
  if (schema.$ref) return kind(found(schema.$ref));
  if (schema.enum) return schema.enum.map(each => JSON.stringify(each)).join(' | ');
  if ('const' in schema) return JSON.stringify(schema.const);
  const several = schema.anyOf || schema.oneOf;
  if (several) return [...new Set(several.map(kind))].join(' | ');
  if (schema.type === 'array') return 'list of ' + kind(schema.items || {});
  return [].concat(schema.type || 'any').join(' | ');
};
const bounds = schema => {
  const words = [];
  const many = [schema, ...(schema.anyOf || [])];
  const names = { minimum: 'from', exclusiveMinimum: 'more than', maximum: 'to', exclusiveMaximum: 'below',
    minLength: 'characters from', maxLength: 'characters to',
    minItems: 'elements from', maxItems: 'elements to' };
  for (const each of many)
    for (const [name, word] of Object.entries(names)) if (name in each) words.push(word + ' ' + each[name]);
  if ((schema.default ?? null) !== null) words.push('default ' + JSON.stringify(schema.default));
  return words.join(', ');
};
const inside = schema => {
  const refs = [schema, schema.items || {}, ...(schema.anyOf || []), ...(schema.oneOf || [])];
  for (const each of [...refs]) if (each.items) refs.push(each.items, ...(each.items.anyOf || []));
  return refs.filter(each => each.$ref).map(each => each.$ref);
};
const fields = (to, schema, depth) => {
  const required = schema.required || [];
  const list = add(to, 'dl');
  for (const [name, field] of Object.entries(schema.properties || {})) {
    const term = add(list, 'dt');
    add(term, 'code', name);
    term.append(' ' + kind(field) + (required.includes(name) ? ', required' : ''));
    const said = [field.description, bounds(field)].filter(Boolean).join(' · ');
    if (said) add(list, 'dd', said);
    if (depth < 4) for (const ref of inside(field)) show(add(list, 'dd'), ref, depth + 1);
  }
};
const show = (to, ref, depth) => {
  const box = fold(to, ref.slice(ref.lastIndexOf('/') + 1));
  box.addEventListener('toggle', () => fields(box, found(ref), depth), { once: true });
};
const endpoint = (path, method, told) => {
  const box = add(main, 'details');
  const title = add(box, 'summary');
  add(title, 'b', method);
  add(title, 'code', path);
  add(title, 'small', told.summary);
  for (const each of told.parameters) {
    const line = add(box, 'p');
    add(line, 'code', each.name);
    line.append(' (' + each.in + ') ' + (each.description || ''));
  }
  const content = told.requestBody && told.requestBody.content['application/json'].schema;
  if (content) add(box, 'h2', 'Body');
  if (content) for (const each of content.anyOf || [content]) show(box, each.$ref, 0);
  add(box, 'h2', 'Answers');
  for (const [status, answer] of Object.entries(told.responses)) {
    const line = add(box, 'p');
    add(line, 'code', status);
    line.append(' ' + answer.description);
    for (const [media, each] of Object.entries(answer.content || {}))
      if (status === '200' && each.schema.$ref) show(box, each.schema.$ref, 0);
      else if (status === '200') line.append(' Or ' + media + '.');
  }
};
fetch('openapi.json').then(answer => answer.json()).then(told => {
  schemas = told.components.schemas;
  add(main, 'h1', told.info.title);
  add(main, 'p', told.info.description);
  for (const [path, methods] of Object.entries(told.paths))
    for (const [method, each] of Object.entries(methods)) endpoint(path, method, each);
}).catch(problem => { add(main, 'p', 'The description could not be read: ' + problem); });
"""

PAGE: Final = (
    '<!doctype html><html lang="en"><head><meta charset="utf-8">'
    '<meta name="viewport" content="width=device-width, initial-scale=1"><title>Forebay</title>'
    f"<style>{_STYLE}</style></head><body><main></main><script>{_SCRIPT}</script></body></html>"
)


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


# Nothing but what stands in the page may run, and it may ask nobody but this server.
HEADERS: Final[Mapping[str, str]] = {
    "Content-Security-Policy": (
        f"default-src 'none'; style-src {_hash(_STYLE)}; script-src {_hash(_SCRIPT)}; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
}
