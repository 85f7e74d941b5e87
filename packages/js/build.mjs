// Compiles src twice: to ES modules in dist/esm and to CommonJS in dist/cjs. Each folder names its own kind of module, which
// the compiler takes from the nearest package.json, so src is copied beside one first. `node build.mjs [TSC] [DIST]`
import { spawnSync } from "node:child_process";
import { cpSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";

const here = dirname(fileURLToPath(import.meta.url));
const compiler = process.argv[2] ?? join(dirname(createRequire(import.meta.url).resolve("typescript/package.json")), "bin/tsc");
const dist = resolve(process.argv[3] ?? join(here, "dist"));

rmSync(dist, { recursive: true, force: true });
for (const [name, type] of [["esm", "module"], ["cjs", "commonjs"]]) {
  const folder = mkdtempSync(join(tmpdir(), "breakloop-"));
  try {
    cpSync(join(here, "src"), join(folder, "src"), { recursive: true });
    cpSync(join(here, "tsconfig.json"), join(folder, "tsconfig.json"));
    writeFileSync(join(folder, "package.json"), JSON.stringify({ type }));
    const done = spawnSync(process.execPath, [compiler, "-p", folder, "--outDir", join(dist, name)], { stdio: "inherit" });
    if (done.status !== 0) process.exit(done.status ?? 1);
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
  mkdirSync(join(dist, name), { recursive: true });
  writeFileSync(join(dist, name, "package.json"), JSON.stringify({ type }) + "\n");
}
