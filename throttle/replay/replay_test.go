package replay_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/headway-go/headway/throttle/demand"
	"github.com/headway-go/headway/throttle/limitsyaml"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/replay"
)

// noon is when the records of these tests begin, in µs.
var noon = time.Date(2030, 1, 31, 12, 0, 0, 0, time.UTC).UnixMicro()

// at is a moment in µs, from noon on.
func at(d time.Duration) int64 { return noon + d.Microseconds() }

// run is a task that wanted to start, and did, and took 100 ms.
func run(scope string, wanted, waited time.Duration) demand.Task {
	return demand.Task{Scope: scope, Wanted: at(wanted), Started: at(wanted + waited), Ended: at(wanted + waited + 100*time.Millisecond), Outcome: "ok"}
}

// worker is a process from the beginning to the end of an hour.
func worker(slots int) (lines []any) {
	p := demand.Process{V: 1, Process: fmt.Sprint("w", slots), At: at(0), Slots: slots}
	lines = append(lines, p)
	p.At, p.End = at(time.Hour), true
	return append(lines, p)
}

func read(t *testing.T, lines ...any) *replay.Record {
	t.Helper()
	var text bytes.Buffer
	for _, l := range lines {
		redistestMust(t, json.NewEncoder(&text).Encode(l))
	}
	r := replay.NewRecord()
	redistestMust(t, r.Read(&text))
	return r
}

func draft(t *testing.T, rules string) *policy.Policy {
	t.Helper()
	p, err := limitsyaml.Parse("draft.yaml", []byte("limits:\n  p: "+rules))
	redistestMust(t, err)
	return p
}

func replayed(t *testing.T, r *replay.Record, rules string) (scopes map[string]replay.Scope, unknown string) {
	t.Helper()
	report := replay.Run(r, draft(t, rules), replay.Config{})
	if again := replay.Run(r, draft(t, rules), replay.Config{}); !reflect.DeepEqual(report, again) {
		t.Errorf("%+v\nand again\n%+v", report, again) // "A replay is deterministic"
	}
	scopes = map[string]replay.Scope{}
	for _, s := range report.Scopes {
		scopes[s.Scope] = s
	}
	return scopes, strings.Join(report.Unknown, "\n")
}

func repeat(n int, one func(i int) demand.Task) (lines []any) {
	for i := range n {
		lines = append(lines, one(i))
	}
	return lines
}

func holds(t *testing.T, text string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if want, not := strings.CutPrefix(part, "!"); strings.Contains(text, want) == not {
			t.Errorf("%q: %t, in\n%s", want, !not, text)
		}
	}
}

// Waits, units and the rule, of a burst under each way to count.
func TestBurst(t *testing.T) {
	t.Parallel()
	for rules, want := range map[string]struct {
		p50, most time.Duration
		used      int64
		rule      string
	}{
		"{rules: [{name: r, algorithm: token-bucket, limit: 10, per: 1s}]}":                                                                {4924500 * time.Microsecond, 9949500 * time.Microsecond, 100, "p:r"},
		"{rules: [{name: r, algorithm: sliding-window, limit: 10, per: 1s}]}":                                                              {4020 * time.Millisecond, 9045 * time.Millisecond, 100, "p:r"},
		"{rules: [{name: r, algorithm: fixed-window, limit: 10, per: 1s}]}":                                                                {4 * time.Second, 9 * time.Second, 100, "p:r"},
		"{rules: [{name: r, algorithm: calendar, limit: 10, resets: '* * * * *'}]}":                                                        {4 * time.Minute, 9 * time.Minute, 100, "p:r"},
		"{rules: [{name: r, algorithm: concurrency, limit: 10}]}":                                                                          {400 * time.Millisecond, 900 * time.Millisecond, 100, "p:r"},
		"{rules: [{name: r, algorithm: calendar, limit: 1, resets: '0 * * * *', rollover: 1}]}":                                            {50*time.Hour - time.Hour, 99 * time.Hour, 2, "p:r"},
		"{paused: true, paused_until: '2030-01-31T12:30:00Z', scopes: {'*': {}}, rules: [{name: r, algorithm: concurrency, limit: 1000}]}": {30 * time.Minute, 30 * time.Minute, 100, "p:paused"},
		"{rules: [{name: r, algorithm: concurrency, limit: 1000}]}":                                                                        {0, 0, 100, ""},
		"{rules: [{name: r, algorithm: token-bucket, limit: 0, per: 1s, active: '* 12 * * *'}]}":                                           {time.Hour, time.Hour, 100, "p:r"},
	} {
		lines := append(worker(200), repeat(100, func(int) demand.Task { return run("p/a", 0, time.Second) })...)
		scopes, unknown := replayed(t, read(t, lines...), rules)
		got := scopes["p/a"]
		if got.Waits.P50 != want.p50 || got.Waits.Most != want.most || got.Used["requests"] != want.used || got.UsedWas["requests"] != 100 || got.Were.P99 != time.Second {
			t.Errorf("%s: %+v", rules, got)
		}
		if got.Rule != want.rule {
			t.Errorf("%s: they wait for %q", rules, got.Rule)
		}
		if unknown != "" {
			t.Errorf("%s: %s", rules, unknown)
		}
	}
}

// "It chooses whose turn it is, by weights": of a shared rule the tenant of weight 3 gets three quarters, whatever their backlogs.
func TestWeightsInAReplay(t *testing.T) {
	t.Parallel()
	lines := append(worker(1000), repeat(300, func(i int) demand.Task { return run([]string{"p/a", "p/b", "p/b"}[i%3], 0, 0) })...)
	scopes, _ := replayed(t, read(t, lines...), "{rules: [{name: r, algorithm: token-bucket, limit: 10, per: 1s}], scopes: {a: {weight: 3}, '*': {}}}")
	a, b := scopes["p/a"], scopes["p/b"]
	if a.Waits.Most < 13*time.Second || a.Waits.Most > 14*time.Second || b.Waits.Most < 29*time.Second {
		t.Errorf("%+v\n%+v", a, b)
	}
}

// Higher priorities go first within a scope.
func TestPrioritiesInAReplay(t *testing.T) {
	t.Parallel()
	lines := worker(1000)
	for i := range 20 {
		task := run("p/a", 0, 0)
		task.Priority, task.Costs = i/19, policy.Costs{"requests": 1, "last": int64(i / 19)}
		lines = append(lines, task)
	}
	scopes, _ := replayed(t, read(t, lines...), "{rules: [{name: r, algorithm: calendar, limit: 1, resets: '0 * * * *'}]}")
	if got := scopes["p/a"].Used; got["last"] != 1 {
		t.Errorf("%v: the first to start is not the one of priority 1", got)
	}
}

// "It counts the slots that the processes had": what waits for one says so, and a looser draft starts no more than they run.
func TestSlotsInAReplay(t *testing.T) {
	t.Parallel()
	lines := append(worker(10), repeat(100, func(int) demand.Task { return run("p/a", 0, time.Second) })...)
	scopes, _ := replayed(t, read(t, lines...), "{rules: [{name: r, algorithm: concurrency, limit: 1000}]}")
	if got := scopes["p/a"]; got.Waits.Most != 900*time.Millisecond || got.Rule != "workers" {
		t.Errorf("%+v", got)
	}
	lines = append(lines[:1], repeat(100, func(int) demand.Task { return run("p/a", 0, time.Second) })...)
	lines = append(lines, demand.Process{V: 1, Process: "w10", At: at(500 * time.Millisecond), Slots: 10, End: true},
		demand.Process{V: 1, Process: "next", At: at(10 * time.Second), Slots: 100}, demand.Process{V: 1, Process: "next", At: at(time.Hour), Slots: 100, End: true})
	scopes, _ = replayed(t, read(t, lines...), "{rules: [{name: r, algorithm: concurrency, limit: 1000}]}")
	if got := scopes["p/a"]; got.Waits.Most != 10*time.Second {
		t.Errorf("half a minute without a worker: %+v", got)
	}
}

// What the draft never admits is refused, and what a rule without units holds up is stuck.
func TestRefusedByADraft(t *testing.T) {
	t.Parallel()
	dear, other, held := run("p/a", 0, 0), run("other/a", 0, 0), run("p/held", 0, 0)
	dear.Cost = 11
	lines := append(worker(10), dear, run("p/a", 0, 0), other, held)
	scopes, _ := replayed(t, read(t, lines...), "{rules: [{name: r, algorithm: token-bucket, limit: 10, per: 1s, burst: 10}], scopes: {held: {paused: true}}}")
	a, o, h := scopes["p/a"], scopes["other/a"], scopes["p/held"]
	if a.Refused != 1 || a.Rule != "p:r" || a.Used["requests"] != 1 || o.Refused != 1 || o.Rule != "no rule" || h.Stuck != 1 || h.Rule == "" {
		t.Errorf("%+v\n%+v\n%+v", a, o, h)
	}
}

// "A task occupies its places for as long as its recorded run took. At its end its costs are settled."
func TestSettledInAReplay(t *testing.T) {
	t.Parallel()
	lines := worker(10)
	for range 3 {
		task := run("p/a", 0, 0)
		task.Costs, task.Used = policy.Costs{"tokens": 100}, policy.Costs{"tokens": 10}
		lines = append(lines, task)
	}
	scopes, _ := replayed(t, read(t, lines...), "{rules: [{name: r, algorithm: sliding-window, limit: 120, per: 1m, unit: tokens}]}")
	if got := scopes["p/a"]; got.Waits.Most != 200*time.Millisecond || got.Used["tokens"] != 30 || got.Used["requests"] != 3 {
		t.Errorf("%+v", got)
	}
}

// "Leaves out rules that tenants share, and slots", of a sample; those of the tenants are judged.
func TestSampleInAReplay(t *testing.T) {
	t.Parallel()
	lines := repeat(10, func(int) demand.Task { return run("p/a", 0, 0) })
	for _, line := range worker(1) {
		p := line.(demand.Process)
		p.Sample = 0.1
		lines = append(lines, p)
	}
	scopes, unknown := replayed(t, read(t, lines...), "{rules: [{name: all, algorithm: fixed-window, limit: 1, per: 1h}], scopes: {'*': {rules: [{name: own, algorithm: fixed-window, limit: 1, per: 1s}]}}}")
	if got := scopes["p/a"]; !got.AtLeast || got.Rule != "p/*:own" || got.Waits.Most != 9*time.Second {
		t.Errorf("%+v", got)
	}
	holds(t, unknown, "10 % of the tenants", "not judged: rule p:all", "!p/*:own")
}

// Lines about one attempt are one task, whichever process wrote them, and in any order.
func TestLinesOfOneTask(t *testing.T) {
	t.Parallel()
	runs := run("p/a", 0, 20*time.Second)
	runs.ID, runs.Wanted = "a1", 0
	met := demand.Task{ID: "a1", Scope: "p/a", Wanted: at(0)}
	again := demand.Task{ID: "a1", Scope: "p/a", Wanted: at(10 * time.Second)}
	deferred := run("p/a", 30*time.Second, 0)
	deferred.ID, deferred.Outcome = "b2", "deferred"
	back := run("p/a", 30*time.Second, 10*time.Second)
	back.ID = "b2"
	waits := demand.Task{ID: "c3", Scope: "p/a", Wanted: at(time.Minute)}
	unseen := demand.Task{Scope: "p/a", Started: at(time.Minute), Ended: at(time.Minute)}
	ahead := run("p/a", time.Minute, -time.Millisecond) // by the clock of who enqueued it
	for seed := range uint64(5) {
		lines := append(worker(10), runs, met, again, deferred, back, waits, unseen, ahead)
		rand.New(rand.NewPCG(seed, 0)).Shuffle(len(lines), func(i, j int) { lines[i], lines[j] = lines[j], lines[i] })
		record := read(t, lines...)
		scopes, unknown := replayed(t, record, "{rules: [{name: r, algorithm: concurrency, limit: 5}]}")
		if got := scopes["p/a"]; got.Tasks != 6 || got.Were.Most != 20*time.Second || got.Were.P50 != 0 || got.Waits.Most != 0 || record.Tasks() != 6 {
			t.Errorf("%+v", got)
		}
		holds(t, unknown, "1 task waited since an unknown time", "1 task still waited when the record ended", "1 run met a limit of the API's own")
	}
}

// "The replay names each of these that it finds."
func TestUnknown(t *testing.T) {
	t.Parallel()
	failed, refused, queue := run("p/a", 0, 0), demand.Task{Scope: "p/a", Wanted: at(0), Ended: at(time.Second), Outcome: demand.Refused}, run("p/a", 0, 0)
	failed.Outcome, queue.Queue = "failed", "slow"
	lines := append(worker(10), failed, refused, queue,
		demand.Process{V: 1, Process: "x", At: at(0), Slots: 3, Lost: 7, Limits: "1"}, demand.Process{V: 1, Process: "y", At: at(0), Slots: 3, Full: true, End: true, Limits: "2"})
	r := read(t, lines...)
	redistestMust(t, r.Read(strings.NewReader("{\"scope\":\"p/a\",\"wanted\":1}\n{\"sco")))
	_, unknown := replayed(t, r, "{pool: {members: [{name: k1}]}, breaker: {failures: 50%}, scopes: {'@*': {rules: [{name: r, algorithm: concurrency, limit: 5}]}}}")
	holds(t, unknown, "1 run failed", "1 task ended without a run", "in 2 queues", "1 change of the limits", "each of 7 lines of the record could not", "1 file was full",
		"each of 2 processes did not end", "not judged: pool p", "breakers, which never open")
	_, unknown = replayed(t, read(t, run("p/a", 0, 0)), "{rules: []}")
	holds(t, unknown, "no process says how many slots")
	if err := replay.NewRecord().Read(strings.NewReader("nonsense\n")); !errors.As(err, new(*demand.LineError)) {
		t.Error(err)
	}
}

// Scopes that change most come first.
func TestOrderOfScopes(t *testing.T) {
	t.Parallel()
	lines := append(worker(10), run("p/same", 0, 0), run("p/sooner", 0, time.Minute), run("p/later", 0, 0), run("p/later", 0, 0), run("q/refused", 0, 0))
	report := replay.Run(read(t, lines...), draft(t, "{scopes: {'*': {rules: [{name: r, algorithm: fixed-window, limit: 1, per: 1s}]}}}"), replay.Config{})
	var order []string
	for _, s := range report.Scopes {
		order = append(order, s.Scope)
	}
	if want := []string{"q/refused", "p/sooner", "p/later", "p/same"}; !slices.Equal(order, want) {
		t.Error(order)
	}
}
