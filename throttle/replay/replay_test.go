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

	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle/demand"
	"github.com/headway-go/headway/throttle/limitsyaml"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/replay"
)

var must = redistest.Must

// noon is when the records of these tests begin.
var noon = time.Date(2030, 1, 31, 12, 0, 0, 0, time.UTC)

func at(d time.Duration) int64 { return noon.Add(d).UnixMicro() }

// run is a task that wanted to start, and did, and took 100 ms.
func run(scope string, wanted, waited time.Duration) demand.Task {
	return demand.Task{Scope: scope, Wanted: at(wanted), Started: at(wanted + waited), Ended: at(wanted + waited + 100*time.Millisecond), Outcome: "ok"}
}

func runs(n int, run demand.Task) []any { return slices.Repeat([]any{run}, n) }

// worker is a process that records for some time.
func worker(slots int, from, to time.Duration) []any {
	p := demand.Process{V: 1, Process: fmt.Sprint(from), At: at(from), Slots: slots}
	end := p
	end.At, end.End = at(to), true
	return []any{p, end}
}

func read(t *testing.T, lines ...any) *replay.Record {
	t.Helper()
	var text bytes.Buffer
	for _, l := range lines {
		must(t, json.NewEncoder(&text).Encode(l))
	}
	r := replay.NewRecord()
	must(t, r.Read(&text))
	return r
}

// replayed runs a record against a draft, whose level p is as said.
func replayed(t *testing.T, r *replay.Record, level string) (scopes map[string]replay.Scope, unknown string, order []string) {
	t.Helper()
	draft, err := limitsyaml.Parse("draft.yaml", []byte("limits: {p: {"+level+"}}"))
	must(t, err)
	report := replay.Run(r, draft)
	if again := replay.Run(r, draft); !reflect.DeepEqual(report, again) {
		t.Errorf("%+v\nand again\n%+v", report, again) // "A replay is deterministic"
	}
	scopes = map[string]replay.Scope{}
	for _, s := range report.Scopes {
		scopes[s.Scope] = s
		order = append(order, s.Scope)
	}
	return scopes, strings.Join(report.Unknown, "\n"), order
}

func holds(t *testing.T, text string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if want, not := strings.CutPrefix(part, "!"); strings.Contains(text, want) == not {
			t.Errorf("%q: %t, in\n%s", want, !not, text)
		}
	}
}

// Waits, units and the rule, of a burst of 100 under each way to count. A rule that counts for longer than a tenth of the record, which is
// of an hour, may have been spent before: "they begin unused. The replay names them".
func TestBurst(t *testing.T) {
	t.Parallel()
	for level, want := range map[string]struct {
		p50, most time.Duration
		used      int64
		rule      string
		unknown   bool
	}{
		"rules: [{name: r, algorithm: token-bucket, limit: 10, per: 1s}]":                                             {p50: 4924500 * time.Microsecond, most: 9949500 * time.Microsecond},
		"rules: [{name: r, algorithm: sliding-window, limit: 10, per: 1s}]":                                           {p50: 4020 * time.Millisecond, most: 9045 * time.Millisecond},
		"rules: [{name: r, algorithm: fixed-window, limit: 10, per: 1s}]":                                             {p50: 4 * time.Second, most: 9 * time.Second},
		"rules: [{name: r, algorithm: calendar, limit: 10, resets: '* * * * *'}]":                                     {p50: 4 * time.Minute, most: 9 * time.Minute},
		"rules: [{name: r, algorithm: concurrency, limit: 10}]":                                                       {p50: 400 * time.Millisecond, most: 900 * time.Millisecond},
		"rules: [{name: r, algorithm: calendar, limit: 1, resets: '0 * * * *', rollover: 1}]":                         {p50: 49 * time.Hour, most: 99 * time.Hour, used: 2, unknown: true},
		"rules: [{name: r, algorithm: concurrency, limit: 1000}]":                                                     {rule: "-"},
		"rules: [{name: r, algorithm: fixed-window, limit: 1, per: 1m, shadow: true}]":                                {rule: "-"},
		"rules: [{name: r, algorithm: token-bucket, limit: 0, per: 1s, active: '* 12 * * *'}]":                        {p50: time.Hour, most: time.Hour},
		"rules: [{name: r, algorithm: concurrency, limit: 1, active: '30-59 12 * * *'}]":                              {rule: "-"},
		"paused: true, paused_until: '2030-01-31T12:30:00Z', rules: [{name: r, algorithm: concurrency, limit: 1000}]": {p50: 30 * time.Minute, most: 30 * time.Minute, rule: "p:paused"},
	} {
		scopes, unknown, _ := replayed(t, read(t, append(worker(200, 0, time.Hour), runs(100, run("p/a", 0, time.Second))...)...), level)
		if want.used == 0 {
			want.used = 100
		}
		got := scopes["p/a"]
		if got.Waits.P50 != want.p50 || got.Waits.Most != want.most || got.Used["requests"] != want.used || got.UsedWas["requests"] != 100 || got.Were.P99 != time.Second {
			t.Errorf("%s: %+v", level, got)
		}
		if rule := strings.Trim(want.rule, "-"); want.rule != "" && got.Rule != rule || want.rule == "" && got.Rule != "p:r" {
			t.Errorf("%s: they wait for %q", level, got.Rule)
		}
		if (unknown != "") != want.unknown || !strings.Contains(unknown, map[bool]string{true: "not exact: rule p:r"}[want.unknown]) {
			t.Errorf("%s: %s", level, unknown)
		}
	}
}

// A rule counts what starts in its hours alone.
func TestHoursInAReplay(t *testing.T) {
	t.Parallel()
	early, late := run("p/a", 0, 0), run("p/a", 31*time.Minute, 0)
	r := read(t, append(worker(100, 0, time.Hour), append(runs(10, early), runs(10, late)...)...)...)
	scopes, _, _ := replayed(t, r, "rules: [{name: r, algorithm: fixed-window, limit: 10, per: 1h, active: '30-59 12 * * *'}]")
	if got := scopes["p/a"]; got.Waits.Most != 0 {
		t.Errorf("%+v", got)
	}
}

// "By weights and shares": of a shared rule the tenant of weight 3 gets three quarters, whatever their backlogs.
func TestWeightsInAReplay(t *testing.T) {
	t.Parallel()
	lines := append(worker(1000, 0, time.Hour), append(runs(100, run("p/a", 0, 0)), runs(200, run("p/b", 0, 0))...)...)
	scopes, _, _ := replayed(t, read(t, lines...), "rules: [{name: r, algorithm: token-bucket, limit: 10, per: 1s}], scopes: {a: {weight: 3}, '*': {}}")
	a, b := scopes["p/a"], scopes["p/b"]
	if a.Waits.Most < 13*time.Second || a.Waits.Most > 14*time.Second || b.Waits.Most < 29*time.Second {
		t.Errorf("%+v\n%+v", a, b)
	}
}

// Higher priorities go first within a scope.
func TestPrioritiesInAReplay(t *testing.T) {
	t.Parallel()
	last := run("p/a", 0, 0)
	last.Priority, last.Costs = 1, policy.Costs{"requests": 1, "last": 1}
	scopes, _, _ := replayed(t, read(t, append(worker(1000, 0, time.Hour), append(runs(19, run("p/a", 0, 0)), last)...)...), "rules: [{name: r, algorithm: calendar, limit: 1, resets: '0 * * * *'}]")
	if got := scopes["p/a"].Used; got["last"] != 1 {
		t.Errorf("%v: the first to start is not the one of priority 1", got)
	}
}

// "Slots are those of all processes together": what waits for one says so, and a looser draft starts no more than they run. A process whose
// first lines are gone, as in Redis, was there from the beginning.
func TestSlotsInAReplay(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		workers []any
		most    time.Duration
	}{
		{worker(10, 0, time.Hour), 900 * time.Millisecond},
		{append(worker(10, 0, 500*time.Millisecond), worker(100, 2*time.Minute, time.Hour)...), 2 * time.Minute},
		{worker(10, 50*time.Second, time.Hour), time.Second}, // what was before the record's first start is not known
	} {
		scopes, _, _ := replayed(t, read(t, append(c.workers, runs(100, run("p/a", 0, time.Second))...)...), "rules: [{name: r, algorithm: concurrency, limit: 1000}]")
		if got := scopes["p/a"]; got.Waits.Most < c.most || got.Waits.Most > c.most+time.Second || got.Rule != "workers" {
			t.Errorf("%+v, want %s", got, c.most)
		}
	}
}

// What the draft never admits is refused, and what a rule without units holds up is stuck.
func TestRefusedByADraft(t *testing.T) {
	t.Parallel()
	dear := run("p/a", 0, 0)
	dear.Cost = 11
	lines := append(worker(10, 0, time.Hour), dear, run("p/a", 0, 0), run("other/a", 0, 0), run("p/held", 0, 0))
	scopes, _, order := replayed(t, read(t, lines...), "rules: [{name: r, algorithm: token-bucket, limit: 10, per: 1s, burst: 10}], scopes: {held: {paused: true}}")
	a, o, h := scopes["p/a"], scopes["other/a"], scopes["p/held"]
	if a.Refused != 1 || a.Rule != "p:r" || a.Used["requests"] != 1 || o.Refused != 1 || o.Rule != "no rule" || h.Stuck != 1 || h.Rule != "p/held:paused" {
		t.Errorf("%+v\n%+v\n%+v", a, o, h)
	}
	if !slices.Equal(order, []string{"other/a", "p/a", "p/held"}) {
		t.Error(order)
	}
}

// "A task occupies its places for as long as its recorded run took. At its end its costs are settled", and until then no rule takes more of
// it than its cap.
func TestSettledInAReplay(t *testing.T) {
	t.Parallel()
	task := run("p/a", 0, 0)
	task.Costs, task.Used = policy.Costs{"tokens": 100}, policy.Costs{"tokens": 10}
	for limit, most := range map[string]time.Duration{"limit: 120": 200 * time.Millisecond, "limit: 300": 0, "limit: 120, cap: 10%": 0, "limit: 60, cap: 20%": 0} {
		scopes, _, _ := replayed(t, read(t, append(worker(10, 0, time.Hour), runs(3, task)...)...), "rules: [{name: r, algorithm: sliding-window, per: 1m, unit: tokens, "+limit+"}]")
		if got := scopes["p/a"]; got.Waits.Most != most || got.Used["tokens"] != 30 || got.Used["requests"] != 3 || got.Refused > 0 {
			t.Errorf("%s: %+v", limit, got)
		}
	}
}

// "Leaves out rules that tenants share, and slots", of a sample; those of the tenants are judged.
func TestSampleInAReplay(t *testing.T) {
	t.Parallel()
	sampled := demand.Process{V: 1, Process: "w", At: at(0), Slots: 1, Sample: 0.1}
	scopes, unknown, _ := replayed(t, read(t, append(runs(10, run("p/a", 0, 0)), sampled)...),
		"rules: [{name: all, algorithm: fixed-window, limit: 1, per: 1h}], scopes: {'*': {rules: [{name: own, algorithm: fixed-window, limit: 1, per: 1s}]}}")
	if got := scopes["p/a"]; !got.AtLeast || got.Rule != "p/*:own" || got.Waits.Most != 9*time.Second {
		t.Errorf("%+v", got)
	}
	holds(t, unknown, "10 % of the tenants", "not judged: rule p:all", "!not judged: rule p/*:own")
}

// Lines about one attempt are one task, whichever process wrote them, and in any order.
func TestLinesOfOneTask(t *testing.T) {
	t.Parallel()
	of := func(id, outcome string, t demand.Task) demand.Task {
		t.ID, t.Outcome = id, outcome
		return t
	}
	handed := of("a1", "ok", run("p/a", 0, 20*time.Second))
	handed.Wanted = 0
	lines := append(worker(10, 0, time.Hour), handed,
		demand.Task{ID: "a1", Scope: "p/a", Wanted: at(0)},
		demand.Task{ID: "a1", Scope: "p/a", Wanted: at(10 * time.Second)}, // met again
		of("b2", "deferred", run("p/a", 30*time.Second, 0)),
		of("b2", "ok", run("p/a", 30*time.Second, 10*time.Second)), // it came back
		demand.Task{ID: "c3", Scope: "p/a", Wanted: at(time.Minute)},
		demand.Task{Scope: "p/a", Started: at(time.Minute), Ended: at(time.Minute)},
		run("p/a", time.Minute, -time.Millisecond)) // by the clock of who enqueued it
	for seed := range uint64(5) {
		rand.New(rand.NewPCG(seed, 0)).Shuffle(len(lines), func(i, j int) { lines[i], lines[j] = lines[j], lines[i] })
		scopes, unknown, _ := replayed(t, read(t, lines...), "rules: [{name: r, algorithm: concurrency, limit: 5}]")
		if got := scopes["p/a"]; got.Tasks != 6 || got.Were.Most != 20*time.Second || got.Were.P50 != 0 || got.Waits.Most != 0 {
			t.Errorf("%+v", got)
		}
		holds(t, unknown, "an unknown time: 1.", "without an end: 1.", "a limit of the API's own: 1.")
	}
}

// "The replay names each of these that it finds."
func TestUnknown(t *testing.T) {
	t.Parallel()
	failed, queue := run("p/a", 0, 0), run("p/a", 0, 0)
	failed.Outcome, queue.Queue = "failed", "slow"
	first := demand.Process{V: 1, Process: "x", At: at(0), Slots: 3, Lost: 7, Limits: "1"}
	r := read(t, append(worker(10, 0, time.Hour), failed, queue, first, demand.Process{V: 1, Process: "y", At: at(0), Slots: 3, Full: true, End: true, Limits: "2"},
		demand.Task{Scope: "p/a", Wanted: at(0), Ended: at(time.Second), Outcome: demand.Refused})...)
	must(t, r.Read(strings.NewReader("{\"scope\":\"p/a\",\"wanted\":1}\n{\"sco")))
	_, unknown, _ := replayed(t, r, "pool: {members: [{name: k1}]}, breaker: {failures: 50%}, scopes: {'@*': {rules: [{name: r, algorithm: concurrency, limit: 5}]}}")
	holds(t, unknown, "lost their leases: 1.", "without a run: 1.", "in 2 queues", "this was recorded: 1.", "could not be written: 7", "were full: 1.",
		"did not end: 1.", "cut off or damaged: 1.", "not judged: pool p", "breakers, which never open")
	// A record without processes begins when its first task wanted to start.
	scopes, unknown, _ := replayed(t, read(t, run("p/a", 0, time.Hour)), "rules: []")
	if holds(t, unknown, "no process says how many slots"); scopes["p/a"].Waits.Most != 0 {
		t.Errorf("%+v", scopes["p/a"])
	}
	for text, want := range map[string]error{"nonsense\n": &demand.LineError{}, `{"v":1,"process":"x","at":` + fmt.Sprint(at(0)) + "}\n": replay.ErrTwice} {
		if err := r.Read(strings.NewReader(text)); reflect.TypeOf(err) != reflect.TypeOf(want) || errors.Is(want, replay.ErrTwice) != errors.Is(err, replay.ErrTwice) {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// Scopes that change most come first.
func TestOrderOfScopes(t *testing.T) {
	t.Parallel()
	lines := append(worker(10, 0, time.Hour), run("p/same", 0, 0), run("p/sooner", 0, time.Minute), run("p/later", 0, 0), run("p/later", 0, 0), run("q/refused", 0, 0))
	_, _, order := replayed(t, read(t, lines...), "scopes: {'*': {rules: [{name: r, algorithm: fixed-window, limit: 1, per: 1s}]}}")
	if !slices.Equal(order, []string{"q/refused", "p/sooner", "p/later", "p/same"}) {
		t.Error(order)
	}
}
