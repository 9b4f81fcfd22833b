"""The stylesheet of the HTML report: light and dark, wide and narrow."""

STYLE = """
:root { --ink:#1b1f24; --soft:#5b6470; --line:#dfe3e8; --card:#f6f7f9; --back:#fff; --bar:#9dbcf0; --mark:#1e429f;
  --won:#0b6e4f; --lost:#b42318 }
.c0 { --c:#2563eb } .c1 { --c:#d9480f } .c2 { --c:#0b7f5c } .c3 { --c:#9333ea }
.c4 { --c:#c02672 } .c5 { --c:#8a6d00 } .c6 { --c:#0e7490 } .c7 { --c:#6b7280 }
@media (prefers-color-scheme: dark) {
  :root { --ink:#e6e9ee; --soft:#9aa4b2; --line:#323a45; --card:#1c222a; --back:#12161c; --bar:#3c5f9e; --mark:#c3d7ff;
    --won:#52d6a0; --lost:#ff8f85 }
  .c0 { --c:#6ea8fe } .c1 { --c:#ff9d5c } .c2 { --c:#4ade9f } .c3 { --c:#c99bff }
  .c4 { --c:#ff8ac2 } .c5 { --c:#e0c341 } .c6 { --c:#4fd3e8 } .c7 { --c:#aab2bf }
}
* { box-sizing:border-box }
body { margin:0 auto; max-width:72rem; padding:1rem; background:var(--back); color:var(--ink);
  font:16px/1.5 system-ui, sans-serif; overflow-wrap:anywhere }
h1 { font-size:1.6rem; margin:.5rem 0 } h2 { font-size:1.25rem; margin:2rem 0 .5rem }
h3 { font-size:1rem; margin:1.5rem 0 0 } h4 { font-size:.95rem; margin:.25rem 0 }
.note, small { color:var(--soft); font-size:.85rem; font-weight:normal } .note { margin:.5rem 0 }
.wide { overflow-x:auto } .main { font-weight:600 }
table { border-collapse:collapse; width:100%; white-space:nowrap; font-variant-numeric:tabular-nums }
th, td { padding:.4rem .6rem; text-align:left; border-bottom:1px solid var(--line) }
th.number, td.number { text-align:right } th { color:var(--soft); font-size:.85rem }
.bar { position:relative; display:block; height:8px; min-width:6rem; margin:3px 0; background:var(--line) }
.bar i { position:absolute; inset:0 auto 0 0; background:var(--bar) }
.bar b { position:absolute; top:3px; height:2px; background:var(--mark) }
ul { list-style:none; margin:.5rem 0; padding:0 } .legend { display:flex; flex-wrap:wrap; gap:.25rem 1.25rem }
.swatch::before { content:""; display:inline-block; width:1.1em; margin-right:.4em; vertical-align:.3em;
  border-top:3px solid var(--c) }
.dashed::before { border-top-style:dashed }
.panels { display:grid; grid-template-columns:repeat(auto-fit, minmax(min(20rem, 100%), 1fr)); gap:1rem }
figure { margin:0 } figcaption { font-weight:600; font-size:.9rem }
svg { width:100%; height:auto; display:block } svg text { font-size:11px; fill:var(--soft) }
svg path { fill:none; stroke-linejoin:round; stroke-linecap:round }
.grid { stroke:var(--line) } .stage { stroke:var(--soft); stroke-dasharray:2 4 }
.raw { stroke:var(--c); opacity:.35 } .mean { stroke:var(--c); stroke-width:2.2 } .dashed .mean { stroke-dasharray:6 4 }
.run { border-top:1px solid var(--line); margin-top:2rem }
details { background:var(--card); border:1px solid var(--line); border-radius:6px; margin:.5rem 0; padding:0 .75rem }
summary { cursor:pointer; padding:.5rem 0 } .step { border-top:1px solid var(--line); padding:.5rem 0 }
pre { margin:.25rem 0; padding:.5rem .75rem; overflow-x:auto; background:var(--back); border:1px solid var(--line);
  font:.85rem/1.35 ui-monospace, monospace; overflow-wrap:normal }
.won { color:var(--won); font-weight:600 } .lost { color:var(--lost); font-weight:600 }
.said { margin:.5rem 0; white-space:pre-line }
.menu { max-width:36rem; font-size:.9rem; font-variant-numeric:tabular-nums }
.menu li { display:grid; grid-template-columns:1fr 7rem 3.5rem; gap:.6rem; align-items:center; padding-left:1.2rem }
.menu .bar + span { text-align:right } .menu small { grid-column:1/-1 }
.chosen { font-weight:600; position:relative } .chosen::before { content:"\\25B6"; position:absolute; font-size:.7em }
"""
