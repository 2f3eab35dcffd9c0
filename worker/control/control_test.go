package control

import (
	"encoding/json"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/limitsyaml"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/policystore"
	"github.com/headway-go/headway/throttle/upstream"
)

func TestMain(m *testing.M) { os.Exit(redistest.Main(m)) }

var must = redistest.Must

// admin may do everything.
var admin = Actor{Name: "root", Role: RoleAdmin, Via: "test"}

const limits = `limits:
  daily:
    rules: [{name: plan, algorithm: fixed-window, limit: 1, per: 30d}]
    scopes:
      "*": {rules: [{name: tenant, algorithm: token-bucket, limit: 100, per: 1s, burst: 100}]}
  runs: {rules: [{name: parallel, algorithm: concurrency, limit: 1}]}
  off: {rules: [{name: plan, algorithm: sliding-window, limit: 0, per: 1s}]}
  free: {rules: [{name: plan, algorithm: token-bucket, limit: 100, per: 1s, burst: 100}]}
`

// asked is a Redis with tasks in it, and the Service that is asked about them.
type asked struct {
	*Service
	t      *testing.T
	rdb    *redis.Client
	queue  *queue.Client
	limits *throttle.Limiter
	store  *policystore.Store
}

func parsed(t *testing.T, text string) *policy.Policy {
	t.Helper()
	p, err := limitsyaml.Parse("limits.yaml", []byte(text))
	must(t, err)
	return p
}

func newAsked(t *testing.T, text string) *asked {
	t.Helper()
	a, p := &asked{t: t, rdb: redistest.NewServer(t).Client(t)}, parsed(t, text)
	const prefix = "own" // of a program that shares its Redis
	var err error
	a.store = policystore.New(a.rdb, policystore.Config{Prefix: prefix})
	a.limits, err = throttle.New(a.rdb, p, throttle.Config{Prefix: prefix, TierOf: a.store.TierOf})
	must(t, err)
	_, _, err = a.store.PublishFile(t.Context(), "worker", p, false)
	must(t, err)
	a.queue = queue.NewClient(a.rdb, queue.ClientConfig{Limiter: a.limits})
	a.Service = New(Config{Redis: a.rdb, Limiter: a.limits, KeyPrefix: prefix, Store: a.store})
	return a
}

// follow has the limiter go by what is published.
func (a *asked) follow() {
	a.t.Helper()
	p, err := a.store.Now(a.t.Context())
	must(a.t, err)
	a.limits.SetPolicy(p)
}

// edit has the limiter go by an edit that was made.
func (a *asked) edit(_ policystore.Made, err error) {
	a.t.Helper()
	must(a.t, err)
	a.follow()
}

// use takes one unit.
func (a *asked) use(scope string) {
	a.t.Helper()
	if d, err := a.limits.Allow(a.t.Context(), scope); err != nil || !d.Allowed {
		a.t.Fatalf("%+v, %v", d, err)
	}
}

func (a *asked) enqueue(tasks ...queue.Task) {
	a.t.Helper()
	for _, task := range tasks {
		task.Type = "work"
		_, err := a.queue.Enqueue(a.t.Context(), task)
		must(a.t, err)
	}
}

// fill has n tasks wait in a scope.
func (a *asked) fill(scope string, n int) {
	a.t.Helper()
	for i := range n {
		a.enqueue(queue.Task{Scope: scope, ID: fmt.Sprint(scope, i)})
	}
}

// task returns the one task of an id.
func (a *asked) task(id string) Task {
	a.t.Helper()
	list, err := a.Task(a.t.Context(), admin, id)
	if err != nil || len(list) != 1 {
		a.t.Fatalf("%s: %v, %v", id, list, err)
	}
	return list[0]
}

func (a *asked) scope(name string) Scope {
	a.t.Helper()
	r, err := a.Scope(a.t.Context(), admin, name)
	must(a.t, err)
	return r
}

// A task and its scope say what it waits for: docs/json.md#reasons.
func TestReasons(t *testing.T) {
	t.Parallel()
	a := newAsked(t, limits)
	a.use("daily/x")
	a.use("runs")
	for _, scope := range []string{"daily/x", "runs", "off"} {
		a.enqueue(queue.Task{Scope: scope, ID: scope})
	}
	for scope, want := range map[string]struct {
		why   Reason
		rule  string
		timed bool
	}{"daily/x": {ReasonRule, "plan", true}, "runs": {ReasonRun, "parallel", false}, "off": {ReasonSuspended, "plan", false}} {
		one, all := a.task(scope), a.scope(scope)
		if one.Reason != want.why || one.Rule != want.rule || one.Start.IsZero() == want.timed || one.Turn != TurnWaiting || one.Position != 1 {
			t.Errorf("task of %s: %+v", scope, one)
		}
		if all.Reason != want.why || all.Rule != want.rule || all.NextStart.IsZero() == want.timed || all.Waiting != 1 {
			t.Errorf("scope %s: %+v", scope, all)
		}
	}
	if free := a.scope("free"); free.Reason != "" || free.Waiting != 0 {
		t.Errorf("no task waits in free: %+v", free)
	}

	a.edit(a.store.Pause(t.Context(), policystore.Edit{By: "anna", For: time.Hour}, "daily"))
	one := a.task("daily/x")
	if one.Reason != ReasonPaused || one.PausedScope != "daily" || one.PausedBy != "anna" || one.PausedSince.IsZero() || !one.Start.After(one.PausedUntil.Time) {
		t.Errorf("paused by anna for an hour, and then its rule has nothing left: %+v", one)
	}
	a.edit(a.store.Remove(t.Context(), policystore.Edit{By: "bert"}, "runs", "parallel"))
	if one := a.task("runs"); one.Reason != ReasonUnmatched || one.UnmatchedBy != "bert" || one.UnmatchedAt.IsZero() || one.UnmatchedSince == 0 {
		t.Errorf("no rule matches it since bert removed one: %+v", one)
	}
}

// Where a breaker is open, a task, its scope, its place in the queue and the lists say so, and a later pause of the API comes first.
func TestReasonIsABreaker(t *testing.T) {
	t.Parallel()
	a := newAsked(t, "limits: {p: {breaker: {wait: 5m}, rules: [{name: r, algorithm: token-bucket, limit: 100, per: 1s, burst: 100}], scopes: {a: {}}}}")
	must(t, a.limits.OpenBreaker(t.Context(), "p", 0))
	a.enqueue(queue.Task{Scope: "p/a", ID: "one"})
	want := Wait{Reason: ReasonBreaker, RuleScope: "p"}
	check := func(want Wait) {
		t.Helper()
		turns, err := a.Turns(t.Context(), "p/a", 0, 10)
		must(t, err)
		list, err := a.Waiting(t.Context(), admin, 10)
		must(t, err)
		last, err := a.LastStart(t.Context(), "p", Outline{Branches: []Branch{{Scope: "p/a", Own: 1}}})
		must(t, err)
		for what, got := range map[string]Wait{"task": a.task("one").Wait, "scope": a.scope("p/a").Wait, "place": turns.List[0].Wait, "list": list.Fullest[0].Wait} {
			if got != want {
				t.Errorf("%s: %+v, want %+v", what, got, want)
			}
		}
		if last.Reason != want.Reason {
			t.Errorf("the last of all: %+v", last)
		}
	}
	check(want)
	if b := a.scope("p/a").Breakers; len(b) != 1 || b[0].Scope != "p" || b[0].Why() != "by hand" || b[0].Then() != "next probe" || time.Until(b[0].NextProbe.Time) < 4*time.Minute {
		t.Errorf("%+v", b)
	}
	if trouble := a.Trouble("p", Outline{Upstream: throttle.UpstreamState{Breakers: []throttle.UpstreamBreaker{{Scope: "p/a"}}}}, Limits{}); trouble.String() != "1 with an open breaker" {
		t.Error(trouble)
	}
	must(t, second(a.limits.Report(t.Context(), "p/a", upstream.Hint{Limited: true, Retry: time.Hour, RetryKnown: true})))
	check(Wait{Reason: ReasonUpstream})
}

func second[T any](_ T, err error) error { return err }

// The moments of an answer are in UTC, with milliseconds; one that is not known is "".
func TestTime(t *testing.T) {
	t.Parallel()
	zone := time.FixedZone("", 3600)
	got, err := json.Marshal([]Time{At(time.Date(2030, 1, 31, 13, 0, 0, 150_999_999, zone)), {}})
	if want := `["2030-01-31T12:00:00.150Z",""]`; err != nil || string(got) != want {
		t.Errorf("got %s, %v; want %s", got, err, want)
	}
	for name, test := range map[string]struct{ in, want [3]time.Duration }{
		"unknown": {[3]time.Duration{throttle.Never, throttle.Never, throttle.Never}, [3]time.Duration{}},
		"exact":   {[3]time.Duration{2, 2, 2}, [3]time.Duration{2}},
		"a range": {[3]time.Duration{2, 1, 4}, [3]time.Duration{2, 1, 4}},
	} {
		at := time.Unix(5, 0)
		start, between := expected(at, throttle.Estimate{In: test.in[0], From: test.in[1], To: test.in[2]})
		for i, got := range []Time{start, between.StartFrom, between.StartTo} {
			if want := test.want[i]; want == 0 && !got.IsZero() || want != 0 && !got.Equal(at.Add(want)) {
				t.Errorf("%s: %d is %s, want %s after %s", name, i, got, want, at)
			}
		}
	}
}
