// Looks at the page of the service through headless Chromium, as a person would.
//
//   node page.mjs PLAYWRIGHT CHROMIUM URL OPEN_URL TOKEN
//
// OPEN_URL is a server without tokens with the batches `done`, `wrong`, `hostile` and `running`
// and the trigger `arrivals`; URL is one that asks for TOKEN.
import assert from "node:assert/strict";
import { createRequire } from "node:module";

const [playwright, executablePath, guarded, open, token] = process.argv.slice(2);
const { chromium } = createRequire(playwright + "/")("playwright-core");
const browser = await chromium.launch({
  executablePath,
  args: ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"],
});
const context = await browser.newContext();
context.setDefaultTimeout(60_000);
const page = await context.newPage();
const foreign = [];
const complaints = [];
page.on("request", (request) => {
  const url = request.url();
  if (!url.startsWith(open) && !url.startsWith(guarded) && !url.startsWith("data:")) foreign.push(url);
});
page.on("console", (message) => {
  // A refusal that is shown to the person is no complaint.
  if (message.type() === "error" && !message.text().includes("the server responded with a status of")) complaints.push(message.text());
});
page.on("pageerror", (error) => complaints.push(String(error)));
const sees = (text) => page.getByText(text, { exact: false }).first().waitFor();
const noSideways = async () => {
  const wide = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
  assert.ok(wide <= 0, `the page is ${wide} px too wide at ${page.url()}`);
};

// The list, and a filter that is wrong and one that is right.
await page.goto(open);
for (const id of ["done", "wrong", "hostile", "running"]) await page.getByRole("link", { name: id, exact: true }).waitFor();
await page.getByLabel("Filter").fill("sate = X");
await page.getByRole("button", { name: "Show" }).click();
await sees("there is no field `sate`");
await page.getByLabel("Filter").fill("state = SUCCEEDED");
await page.getByRole("button", { name: "Show" }).click();
await page.getByRole("link", { name: "wrong", exact: true }).waitFor({ state: "detached" });

// A batch that is done: history, stages with bars, configuration, log.
await page.getByRole("link", { name: "done", exact: true }).click();
await page.locator("#state .SUCCEEDED").waitFor();
await sees("submitted");
await page.locator(".bar").first().waitFor();
await page.locator("#effective summary").click();
await sees("executors.cores");
await page.locator("#log").getByText("the stage starts").first().waitFor();
assert.ok(await page.locator("#cancel").isDisabled());

// One that failed says why.
await page.goto(`${open}/#/batches/wrong`);
await page.locator("#state .FAILED").waitFor();
await sees("nowhere");

// What a query prints is text.
await page.goto(`${open}/#/batches/hostile`);
await page.locator("#log").getByText("<img src=x onerror=").first().waitFor();
assert.equal(await page.evaluate(() => window.hacked), undefined);
assert.equal(await page.locator("#log img").count(), 0);

// One that runs: its log follows, and the keyboard cancels and retries it.
await page.goto(`${open}/#/batches/running`);
await page.locator("#state .RUNNING").waitFor();
await page.locator("#log").getByText("the stage starts").first().waitFor();
await page.locator("#cancel").focus();
await page.keyboard.press("Enter");
await page.locator("#state .CANCELLED").waitFor();
await page.locator("#log").getByText("cancelled").first().waitFor();
await page.locator("#retry:not([disabled])").focus();
await page.keyboard.press("Enter");
await page.locator("#state .RUNNING").waitFor();

// The first stop of the keyboard leads to the content.
await page.goto(`${open}/#/batches`);
await page.reload();
await page.keyboard.press("Tab");
assert.equal(await page.evaluate(() => document.activeElement.textContent), "Skip to the content");

await page.keyboard.press("Enter");
assert.equal(await page.evaluate(() => document.activeElement.id + location.hash), "main#/batches");
await page.reload();
await page.keyboard.press("Tab");

// Triggers with their dead events. The click lands although the focus moves with it.
await page.getByRole("link", { name: "Triggers" }).click();
await sees("its shape is none that is known");

// A telephone.
await page.setViewportSize({ width: 360, height: 700 });
for (const view of ["batches", "batches/done", "batches/hostile", "triggers"]) {
  await page.goto(`${open}/#/${view}`);
  await page.locator("td").first().waitFor();
  await noSideways();
}

// A server with tokens asks for one and goes on with it.
await page.goto(guarded);
await page.getByLabel("This service asks for a token").fill(token);
await page.getByRole("button", { name: "Use it" }).click();
await sees("No batch fits.");
assert.equal(await page.evaluate(() => localStorage.length), 0);

assert.deepEqual(foreign, [], "nothing is asked of other sites");
assert.deepEqual(complaints, [], "the browser has nothing to complain of");
await browser.close();
