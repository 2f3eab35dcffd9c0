package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/headway-go/headway/cmd/internal/cli"
	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/test/redistest"
)

const draftLimits = "limits: {p: {scopes: {'*': {rules: [{name: tenant, algorithm: sliding-window, limit: %d, per: 1h}]}}}}\n"

// From a worker that records, into a file and into Redis, to what a draft would have done.
func TestReplayCommand(t *testing.T) {
	t.Parallel()
	url, rdb := ownClient(t)
	api := newAPI(t, nil)
	path := filepath.Join(t.TempDir(), "record.ndjson.gz")
	limits := limitsFile(t, fmt.Sprintf(draftLimits, 1000))
	for i, to := range []string{path, inRedis} {
		r := start(t, whole, nil, "-redis", url, "-limits", limits, "-allow-host", api.host(), "-record", to)
		r.says("msg=ready")
		var tasks []queue.Task
		for n := range 20 {
			tasks = append(tasks, api.task([]string{"p/a", "p/b"}[n/15], fmt.Sprint(i, "-", n)))
		}
		enqueue(t, rdb, tasks...)
		redistest.WaitFor(t, "all calls", bound, func() bool { return int(api.calls.Load()) == 20*(i+1) })
		r.quits()
		out, errs := ask(t, cli.ExitOK, "limits", "replay", "-redis", url, "-draft", limitsFile(t, fmt.Sprintf(draftLimits, 10)), to)
		says(t, out, "recorded: 20 tasks of 2 scopes, from 20", "by 1 worker with 32 slots", "SCOPE  TASKS  WAIT P50", "not exact: rule p/*:tenant")
		lines := strings.Split(out, "\n")
		a, b := strings.Fields(lines[3]), strings.Fields(lines[4])
		if errs != "" || a[0] != "p/a" || a[1] != "15" || !strings.HasPrefix(a[3], "1h") || a[6] != "10" || a[7] != "15" || a[9] != "p/*:tenant" || b[0] != "p/b" || b[8] != "0" {
			t.Errorf("%s\n%s", out, errs)
		}
	}
	info, err := os.Stat(path)
	must(t, err)
	all := objects(t, first(ask(t, cli.ExitOK, "limits", "replay", "-redis", url, "-draft", limits, path, inRedis, "-json")))
	if len(all) != 3 || all[2]["tasks"] != 40.0 || all[2]["workers"] != 2.0 || all[0]["rule"] == "p/*:tenant" || info.Size() > 3000 {
		t.Errorf("%v, %d bytes", all, info.Size())
	}
	draft := limitsFile(t, strings.Replace(fmt.Sprintf(draftLimits, 10), "scopes:", "tiers: {gold: {rules: [{name: tenant, unlimited: true}]}}, scopes:", 1))
	ask(t, cli.ExitOK, "limits", "import", "-redis", url, "-replace", draft)
	ask(t, cli.ExitOK, "limits", "tier", "-redis", url, "p/a", "gold")
	out, _ := ask(t, cli.ExitOK, "limits", "replay", "-draft", draft, path)
	says(t, out, "p/*:tenant\n", "- which names have the tiers of the draft is in no record")
	out, _ = ask(t, cli.ExitOK, "limits", "replay", "-redis", url, "-draft", draft, inRedis)
	says(t, out, "!p/*:tenant\n", "- names have the tiers that Redis has for them now")
}

func first(out, _ string) string { return out }

// "-record-sample 10%", "-record-mb": what cannot be is refused, before anything is tried.
func TestRecordFlags(t *testing.T) {
	t.Parallel()
	full, other := filepath.Join(t.TempDir(), "full"), limitsFile(t, someLimits)
	must(t, os.WriteFile(full, make([]byte, 1<<20), 0o600))
	for line, want := range map[string]string{
		"-record-sample 10%":            "-record-sample and -record-mb need -record",
		"-record x -record-sample 0%":   `-record-sample "0%" is not a percentage`,
		"-record x -record-sample 0.1":  `-record-sample "0.1" is not a percentage`,
		"-record x -record-sample 101%": "is not a percentage",
		"-record x -record-mb 0":        "-record-mb 0 is not from 1 to",
	} {
		start(t, with(newFakeSystem()), nil, strings.Fields(line)...).refuses(cli.ExitUsage, want, "try: ")
	}
	good := "-limits " + limitsFile(t, someLimits)
	for line, want := range map[string]string{
		" -record /nowhere/record":           "worker: -record: cannot write the record: open /nowhere/record: no such file",
		" -record " + full + " -record-mb 1": "has 1 MB already",
		" -record " + other:                  other + " has something else than a record, which stays as it is",
	} {
		start(t, with(newFakeSystem()), nil, strings.Fields(good+line)...).refuses(cli.ExitFailed, want, "try: ")
	}
}

// Bad input of a replay, as the command line answers it.
func TestReplayFaults(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		must(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	draft, task := limitsFile(t, someLimits), `{"scope":"payments/a","wanted":1895918400000000}`+"\n"
	good, twice := write("good", task), write("twice", `{"v":1,"process":"a","at":1}`+"\n"+task)
	for line, want := range map[string]string{
		good:                                                     "2 -draft is missing",
		"-draft " + draft:                                        "2 an argument is missing",
		"-draft /nowhere/draft.yaml " + good:                     "1 there is no limits file /nowhere/draft.yaml",
		"-draft " + good + " " + good:                            "1 correct these lines of " + good,
		"-draft " + draft + " " + dir + "/goo":                   "1 there is no record " + dir + "/goo\ntry: " + good,
		"-draft " + draft + " " + dir:                            "1 is a directory\ntry: " + dir + "/*.ndjson.gz",
		"-draft " + draft + " rdis":                              "1 there is no record rdis\ntry: redis",
		"-draft " + draft + " " + twice + " " + twice:            "1 " + twice + ": this record is read a second time",
		"-draft " + draft + " " + draft:                          "1 is no record of demand: line 1: invalid character",
		"-draft " + draft + " " + write("later", task+`{"v":9}`): "1 line 2: it is of version 9",
		"-draft " + draft + " " + write("empty", ""):             "1 no task is recorded in " + dir + "/empty",
		"-draft " + draft + " -redis redis://127.0.0.1:1 redis":  "1 nothing listens at 127.0.0.1:1",
		"-draft " + draft + " " + write("cut", strings.Repeat(task, 2)+`{"scope":"`): "0",
	} {
		code, part, _ := strings.Cut(want, " ")
		out, errs := ask(t, int(code[0]-'0'), append([]string{"limits", "replay"}, strings.Fields(line)...)...)
		if part != "" && (!strings.Contains(errs, part) || out != "") {
			t.Errorf("%s: %s%s", line, out, errs)
		}
		if part == "" {
			says(t, out, "recorded: 2 tasks of 1 scope, from 2030-01-29T12:00:00.000Z", "What the record cannot tell", "cut off or damaged: 1.")
		}
	}
}

// A table has twenty scopes, -all has more; waits are for people.
func TestReplayTable(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "record")
	text := `{"v":1,"process":"w","at":1895918400000000,"slots":9,"sample":0.5}` + "\n"
	for i := range 30 {
		text += fmt.Sprintf(`{"scope":"payments/t%02d","wanted":1895918400000000,"started":1895918400000000,"ended":1895918400000000,"costs":{"tokens":%d}}`+"\n", i, i)
	}
	must(t, os.WriteFile(path, []byte(text), 0o600))
	draft := limitsFile(t, someLimits)
	out, _ := ask(t, cli.ExitOK, "limits", "replay", "-draft", draft, path)
	says(t, out, "TOKENS  WAS", "≥0s", "10 scopes more, which change less: -all prints them", "!payments/t25", "- not judged: rule payments:account", "50 % of the tenants")
	out, _ = ask(t, cli.ExitOK, "limits", "replay", "-draft", draft, path, "-all")
	says(t, out, "payments/t29", "!-all")
	for d, want := range map[time.Duration]string{0: "0s", 1234567 * time.Nanosecond: "1ms", 59*time.Second + time.Millisecond: "59.001s", time.Hour + 1500*time.Millisecond: "1h0m2s"} {
		if got := brief(d); got != want {
			t.Errorf("%s: %s", d, got)
		}
	}
}
