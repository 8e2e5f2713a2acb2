"""How all pages look, light and dark: no font, no picture, nothing from elsewhere."""

from __future__ import annotations

SHADES = 9
"""Classes h0 to h8 of a heat map."""
STYLE = """
:root{color-scheme:light dark;--bg:#f4f6f8;--card:#fff;--ink:#161b22;--soft:#566070;--line:#dbe0e6;--track:#e6eaef;
--accent:#1f5fbf;--bad:#b3261e;--warning:#8a5300;--note:#2d5f9a;--good:#1c6b3c;--s0:#1f5fbf;--s1:#b04a00;--s2:#1c6b3c;--s3:#8a2f8f;--s4:#566070;
--h0:#edf4fc;--h1:#d6e6f8;--h2:#bcd7f4;--h3:#9fc5ee;--h4:#80b1e7;--h5:#3a76bf;--h6:#2d65ab;--h7:#225393;--h8:#17417a;
--low:#0d1624;--high:#fff}
@media(prefers-color-scheme:dark){:root{--bg:#0e1217;--card:#161b22;--ink:#e6eaf0;--soft:#9ba7b6;--line:#2b333d;
--track:#2a323c;--accent:#84b6f4;--bad:#ff9c94;--warning:#f0b955;--note:#8fbdf5;--good:#79d19b;
--s0:#84b6f4;--s1:#f2a25c;--s2:#79d19b;--s3:#d9a0e6;--s4:#9ba7b6;
--h0:#17273a;--h1:#1b344f;--h2:#204164;--h3:#264f7b;--h4:#2c5e93;--h5:#6aa5e6;--h6:#86b8ee;--h7:#a6ccf5;
--h8:#c9e1fb;--low:#f2f6fb;--high:#0a1420}}
*{box-sizing:border-box}
html{scroll-padding-top:56px;-webkit-text-size-adjust:100%}
body{margin:0;background:var(--bg);color:var(--ink);font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
header,main,footer{max-width:1120px;margin:0 auto;padding:0 16px}
header{padding-top:24px}
h1{font-size:26px;line-height:1.2;margin:0 0 6px}
h2{font-size:20px;margin:0 0 12px}
h3{font-size:15px;margin:22px 0 8px}
p{margin:0 0 10px;overflow-wrap:anywhere}
ul{margin:0;padding-left:20px}
li,dd{overflow-wrap:anywhere}
small,.note,.of,.title,figcaption,caption{color:var(--soft);font-size:13px}
code,.code{font:13px/1.4 ui-monospace,"SFMono-Regular",Menlo,Consolas,monospace;overflow-wrap:anywhere}
.machine{color:var(--soft)}
.skip{position:absolute;left:-999px}.skip:focus{left:8px;top:8px;background:var(--card);padding:8px;z-index:3}
nav{position:sticky;top:0;z-index:2;background:var(--bg);border-bottom:1px solid var(--line);overflow-x:auto}
nav ul{display:flex;gap:4px;max-width:1120px;margin:0 auto;padding:8px 16px;list-style:none}
nav a{display:block;padding:4px 10px;border-radius:6px;color:var(--accent);text-decoration:none;white-space:nowrap}
nav a:hover,nav a:focus-visible{background:var(--track)}
section{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:20px;margin:16px 0;min-width:0}
.missing{color:var(--soft);font-style:italic}
.block,.calm{border:1px dashed var(--line);border-radius:8px;padding:14px;margin:8px 0}
.finding{border:1px solid var(--line);border-left:5px solid var(--c);border-radius:8px;padding:12px 14px;
margin:0 0 12px}
.finding.bad{--c:var(--bad)}.finding.warning{--c:var(--warning)}.finding.note{--c:var(--note)}
.finding.note{font-size:inherit;color:inherit}
.finding h3{margin:0 0 8px;font-size:16px;overflow-wrap:anywhere}
.sign{color:var(--c);border:1px solid var(--c);border-radius:12px;padding:1px 9px;font-size:13px;margin-right:8px;
white-space:nowrap}
.sign.bad{--c:var(--bad)}.sign.warning{--c:var(--warning)}.sign.note{--c:var(--note)}
.rule{color:var(--soft);margin-right:8px}
dl{display:grid;grid-template-columns:max-content 1fr;gap:6px 16px;margin:0}
dt{color:var(--soft);font-size:13px;padding-top:1px}dd{margin:0;min-width:0}
.reason{font-size:16px}
.tiles{display:grid;grid-template-columns:repeat(auto-fill,minmax(158px,1fr));gap:10px;margin-bottom:10px}
.tiles.wide{grid-template-columns:repeat(auto-fill,minmax(220px,1fr))}
.tile{border:1px solid var(--line);border-radius:8px;padding:10px 12px;display:flex;flex-direction:column;gap:2px;
min-width:0}
.tile .value{font-size:19px;line-height:1.3;font-weight:600;overflow-wrap:anywhere}
.tile data{white-space:nowrap}.tile .words{font-size:15px}
.tile .missing{font-size:15px;font-weight:400}
.scroll{overflow-x:auto;max-width:100%;margin:0 0 10px}
.scroll:focus-visible,summary:focus-visible,a:focus-visible,input:focus-visible{
outline:2px solid var(--accent);outline-offset:2px}
table{border-collapse:collapse;font-variant-numeric:tabular-nums;min-width:min(100%,420px)}
caption{text-align:left;padding:0 0 6px;position:sticky;left:0;max-width:min(1040px,calc(100vw - 66px))}
th,td{padding:5px 12px 5px 0;border-bottom:1px solid var(--line);text-align:left;vertical-align:top}
thead th{color:var(--soft);font-size:13px;font-weight:600;vertical-align:bottom;min-width:76px}
tbody th{font-weight:400;min-width:190px;max-width:460px;overflow-wrap:anywhere}
td .missing{font-size:13px}
table:not(.heat) :is(td,th):not(.words,[scope=row]){text-align:right;padding-left:12px;padding-right:0}
tbody th:has(.long){min-width:340px}
.bar{display:block;position:relative;height:6px;min-width:64px;background:var(--track);border-radius:3px;margin-top:3px}
.bar i{display:block;height:6px;border-radius:3px;background:var(--accent)}
.bar b{position:absolute;top:-3px;width:2px;height:12px;background:var(--ink)}
.heat{border-collapse:separate;border-spacing:3px;min-width:0}
.heat th{border:0;text-align:center;min-width:0;color:var(--soft);font-size:13px;font-weight:600;padding:4px 8px}
.heat .corner{white-space:normal;max-width:84px;text-align:left;padding-left:0}
.heat td{border:0;border-radius:6px;padding:8px 10px;min-width:104px;text-align:center}
.heat td>*{display:block;line-height:1.35}.heat strong{font-size:17px}.heat em{font-size:16px}
.heat small{color:inherit;font-size:12px}
.heat .empty{color:var(--soft);border:1px dashed var(--line)}
.heat .failed{border:1px solid var(--line);
background:repeating-linear-gradient(45deg,transparent 0 7px,var(--track) 7px 9px)}
.heat .chosen{outline:3px solid var(--ink);outline-offset:-1px}
.heat .star,.star{font-weight:700}
.h0{background:var(--h0);color:var(--low)}.h1{background:var(--h1);color:var(--low)}.h2{background:var(--h2);color:var(--low)}
.h3{background:var(--h3);color:var(--low)}.h4{background:var(--h4);color:var(--low)}.h5{background:var(--h5);color:var(--high)}
.h6{background:var(--h6);color:var(--high)}.h7{background:var(--h7);color:var(--high)}.h8{background:var(--h8);color:var(--high)}
figure{margin:12px 0}
svg{display:block;max-width:100%}
.grid{stroke:var(--line)}
.stack{display:flex;height:34px;margin:0 0 12px;border-radius:6px;overflow:hidden;gap:1px}
.stack i{font-style:normal;font-size:13px;line-height:34px;overflow:hidden;white-space:nowrap;text-align:center;
min-width:2px;background:var(--k);color:#10161f}
.lane-name{font-size:13px;color:var(--soft);margin:6px 0 2px}.lane-name span{position:sticky;left:0}
.chart-box{margin:0;min-width:0}.chart-box figcaption{color:var(--ink);margin-bottom:6px}
.plot{display:grid;grid-template-columns:max-content minmax(0,1fr);gap:4px 8px}
.plot>svg{width:100%;height:170px;background:var(--bg);border-radius:4px;overflow:hidden}
.ys{position:relative;font-size:12px;color:var(--soft);font-variant-numeric:tabular-nums;justify-self:end}
.ys span{position:absolute;right:0;transform:translateY(-50%);white-space:nowrap}
.xs{grid-column:2;position:relative;height:18px;font-size:12px;color:var(--soft);font-variant-numeric:tabular-nums}
.xs span{position:absolute;transform:translateX(-50%);white-space:nowrap}
.xs .from{transform:none}.xs .to{transform:translateX(-100%)}
.line{fill:none;stroke-width:2;vector-effect:non-scaling-stroke;stroke-linejoin:round;stroke-linecap:round}
.s0{stroke:var(--s0)}.s1{stroke:var(--s1);stroke-dasharray:7 4}.s2{stroke:var(--s2);stroke-dasharray:2 4}
.s3{stroke:var(--s3);stroke-dasharray:10 3 2 3}.s4{stroke:var(--s4);stroke-dasharray:4 3}
.plot path.grid{stroke:var(--line);stroke-width:1;vector-effect:non-scaling-stroke;fill:none}
.legend svg{display:inline-block;vertical-align:-2px;margin-right:5px}.legend b{color:var(--ink)}
details{border-top:1px solid var(--line);margin-top:10px;padding-top:8px}
summary{cursor:pointer;font-weight:600;padding:4px 0;margin-bottom:6px}
.fold{border:0;margin:0;padding:0}.fold>summary{margin:0 0 12px;padding:0}
.fold>summary h2{display:inline;margin:0 0 0 4px}.fold:not([open])>summary{margin:0}
.swatch{display:inline-block;width:12px;height:12px;border-radius:3px;background:var(--k);border:1px solid #0006;
margin-right:6px;vertical-align:-1px}
.legend{display:flex;flex-wrap:wrap;gap:2px 16px;padding:0;margin-bottom:8px;list-style:none;font-size:13px;
color:var(--soft)}
footer{color:var(--soft);font-size:13px;padding-bottom:32px}
@media(max-width:640px){header,main,footer{padding:0 10px}header{padding-top:16px}section{padding:14px 12px}
nav ul{padding:6px 10px}h1{font-size:22px}dl{grid-template-columns:1fr;gap:2px}dd{margin-bottom:6px}
.tiles{grid-template-columns:1fr 1fr}.tiles.wide{grid-template-columns:1fr}caption{max-width:calc(100vw - 46px)}
tbody th{min-width:150px;max-width:220px}tbody th:has(.long){min-width:200px}}
@media print{html{print-color-adjust:exact;-webkit-print-color-adjust:exact}nav{position:static}
:is(h1,h2,h3,caption,figcaption){break-after:avoid}:is(tr,figure,.tile,.finding){break-inside:avoid}}
"""
