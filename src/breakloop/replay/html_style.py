"""The style of HTML reports: one sheet, light and dark, no fonts or pictures from elsewhere. What stands on a page is
`html_report`'s business."""

from __future__ import annotations

from typing import Final

STYLE: Final = """
:root{color-scheme:light dark;--paper:#fbfbf9;--card:#fff;--ink:#1c1f23;--soft:#5b636d;--line:#dfe2e6;--frame:#fdeceb;
--frame-line:#e3a29c;--notice:#935800;--block:#c4271a;--link:#0b57a4;--once:#d5d9de;
--c0:#2f6db3;--c1:#d1801f;--c2:#2f8f6b;--c3:#a3479c;--c4:#7a6a2c;--c5:#4b9fb8;--c6:#c25673;--c7:#5d5fb5}
@media (prefers-color-scheme:dark){:root{--paper:#15181c;--card:#1d2126;--ink:#e8eaed;--soft:#a4adb8;--line:#343a42;
--frame:#3a2321;--frame-line:#8c4a44;--notice:#f0ad4e;--block:#ff7b6e;--link:#8ec1ff;--once:#454c55;
--c0:#6ea8ea;--c1:#efa552;--c2:#5cc49b;--c3:#d68ad0;--c4:#c3b169;--c5:#7fcbe0;--c6:#ee8ba6;--c7:#9a9cf0}}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);font:16px/1.5 system-ui,-apple-system,"Segoe UI",sans-serif}
main{max-width:1080px;margin:0 auto;padding:32px 24px 64px}
h1{font-size:1.6rem;margin:0 0 4px}h2{font-size:1.25rem;margin:40px 0 12px}h3{font-size:1.05rem;margin:0}
p{margin:8px 0}a{color:var(--link)}.soft{color:var(--soft)}
code{font:.92em ui-monospace,"SF Mono",Menlo,Consolas,monospace;overflow-wrap:anywhere}
pre{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:12px 16px;overflow-x:auto}
.cards,.key{margin:24px 0 0;padding:0;list-style:none}
.cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(170px,1fr));gap:12px}
.cards li,article{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:14px 16px}
.cards b{display:block;font-size:1.55rem;line-height:1.25}.cards .bad b{color:var(--block)}
.scroll{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-size:.93rem}caption{text-align:left;color:var(--soft);padding-bottom:6px}
th,td{text-align:left;padding:7px 12px 7px 0;border-bottom:1px solid var(--line);vertical-align:top}
td:first-child{overflow-wrap:anywhere;min-width:12rem}
th{font-weight:600;white-space:nowrap}td.n,th.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
article{margin:0 0 16px}article header{display:flex;flex-wrap:wrap;gap:8px 12px;align-items:baseline}
.tag{border:1px solid currentColor;border-radius:99px;padding:0 9px;font-size:.82rem;white-space:nowrap}
.tag.block{color:var(--block)}.tag.notice{color:var(--notice)}
.evidence{font-size:1.02rem}
.timeline{display:block;max-width:100%;height:auto;margin:12px 0 0}
.timeline .frame{fill:var(--frame);stroke:var(--frame-line)}
.timeline .notice{fill:var(--notice)}.timeline .block{fill:var(--block)}
.timeline .gap{stroke:var(--soft);stroke-dasharray:2 3;fill:none}
.timeline .axis{fill:var(--soft);font:10.5px system-ui,sans-serif}
.once{fill:var(--once);background:var(--once)}
.c0{fill:var(--c0);background:var(--c0)}.c1{fill:var(--c1);background:var(--c1)}.c2{fill:var(--c2);background:var(--c2)}
.c3{fill:var(--c3);background:var(--c3)}.c4{fill:var(--c4);background:var(--c4)}.c5{fill:var(--c5);background:var(--c5)}
.c6{fill:var(--c6);background:var(--c6)}.c7{fill:var(--c7);background:var(--c7)}
.key{display:flex;flex-wrap:wrap;gap:4px 16px;margin-top:8px;font-size:.85rem;color:var(--soft)}
.swatch{display:inline-block;width:11px;height:11px;border-radius:2px;margin-right:6px}
.timeline.sign{display:inline-block;width:12px;height:12px;margin:0 6px 0 0;vertical-align:-1px}
.facts{display:flex;flex-wrap:wrap;gap:2px 20px;margin:8px 0 0;font-size:.9rem;color:var(--soft)}
blockquote{margin:10px 0 0;padding:6px 12px;border-left:3px solid var(--line);color:var(--soft)}
.skip{position:absolute;left:-999px}.skip:focus{left:8px;top:8px;background:var(--card);padding:8px}
@media print{article{break-inside:avoid}}
"""
