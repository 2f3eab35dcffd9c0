package metrics

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/limitsyaml"
)

func TestMain(m *testing.M) { os.Exit(redistest.Main(m)) }

func scrape(t *testing.T, m *Metrics) string {
	t.Helper()
	w := httptest.NewRecorder()
	m.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	if w.Code != http.StatusOK {
		t.Fatalf("status %d: %s", w.Code, w.Body)
	}
	return w.Body.String()
}

func wantLines(t *testing.T, page string, lines ...string) {
	t.Helper()
	for _, l := range lines {
		if !strings.Contains(page, l+"\n") {
			name, _, _ := strings.Cut(l, "{")
			t.Errorf("no line %s\ngot: %s", l, strings.Join(regexp.MustCompile("(?m)^"+name+".*$").FindAllString(page, -1), "\n     "))
		}
	}
}

func one(pattern, rule string) throttle.Decision {
	return throttle.Decision{Rules: []throttle.RuleState{{RuleInfo: &throttle.RuleInfo{Pattern: pattern, Rule: rule}}}}
}

// Shadow rules are told apart by where the policy has them, and by what they said.
func TestShadowed(t *testing.T) {
	t.Parallel()
	m := New(Config{MaxRules: 1})
	told := func(pattern string, outcome throttle.ShadowOutcome, wait time.Duration) {
		m.Shadowed(throttle.Shadowed{Outcome: outcome, RuleState: throttle.RuleState{
			RuleInfo: &throttle.RuleInfo{Scope: "payments/acme", Pattern: pattern, Rule: "trial"}, Limited: wait > 0, RetryAfter: wait,
		}})
	}
	told("payments/*", throttle.ShadowAllowed, 0)
	told("payments/*", throttle.ShadowDenied, 2*time.Second)
	told("payments/*", throttle.ShadowDenied, throttle.Never)
	told("payments/*", throttle.ShadowDropped, 0)
	told("payments/*", throttle.ShadowFailed, 0)
	told("search", throttle.ShadowAllowed, 0)
	page := scrape(t, m)
	wantLines(t, page,
		`headway_shadow_decisions_total{outcome="allowed",rule="payments/*:trial"} 1`,
		`headway_shadow_decisions_total{outcome="denied",rule="payments/*:trial"} 2`,
		`headway_shadow_decisions_total{outcome="dropped",rule="payments/*:trial"} 1`,
		`headway_shadow_decisions_total{outcome="error",rule="payments/*:trial"} 1`,
		`headway_shadow_decisions_total{outcome="allowed",rule="other"} 1`,
		`headway_shadow_wait_seconds_count{rule="payments/*:trial"} 1`,
		`headway_shadow_wait_seconds_sum{rule="payments/*:trial"} 2`,
	)
	if strings.Contains(page, "acme") {
		t.Error("a label holds a tenant")
	}
}

var _ throttle.Observer = (*Metrics)(nil)

func TestDecided(t *testing.T) {
	t.Parallel()
	m := New(Config{})
	account := throttle.RuleState{RuleInfo: &throttle.RuleInfo{Scope: "payments", Pattern: "payments", Rule: "account"}}
	refunds := throttle.RuleState{RuleInfo: &throttle.RuleInfo{Scope: "payments/acme/refunds", Pattern: "payments/*/refunds", Rule: "refunds"}}
	full := refunds
	full.Limited, full.RetryAfter = true, 2*time.Second
	suspended := full
	suspended.RetryAfter = throttle.Never
	decide := func(degraded bool, rules ...throttle.RuleState) throttle.Decision {
		return throttle.Decision{Rules: rules, Degraded: degraded}
	}
	m.Decided(decide(false, account, refunds), 2*time.Millisecond, nil)
	m.Decided(decide(false, account, full), time.Millisecond, nil)
	m.Decided(decide(false, account, suspended), time.Millisecond, nil)
	m.Decided(decide(true, account), time.Second, nil)
	m.Decided(decide(true, full), time.Second, nil)
	m.Decided(throttle.Decision{Rules: []throttle.RuleState{account}, Prefetched: true}, 0, nil) // nobody was asked
	m.Decided(throttle.Decision{}, time.Second, throttle.ErrUnavailable)
	m.Decided(throttle.Decision{}, time.Second, fmt.Errorf("stopped: %w", context.Canceled))
	wantLines(t, scrape(t, m),
		`headway_decisions_total{outcome="allowed",rule="payments:account"} 4`,
		`headway_decisions_total{outcome="denied",rule="payments:account"} 0`,
		`headway_decisions_total{outcome="degraded",rule="payments:account"} 1`,
		`headway_decisions_total{outcome="denied",rule="payments/*/refunds:refunds"} 2`,
		`headway_decisions_total{outcome="degraded",rule="payments/*/refunds:refunds"} 1`,
		`headway_decisions_total{outcome="error",rule="none"} 1`,
		`headway_denials_total{rule="payments/*/refunds:refunds"} 3`,
		`headway_denials_total{rule="payments:account"} 0`,
		`headway_wait_seconds_bucket{rule="payments/*/refunds:refunds",le="1"} 0`,
		`headway_wait_seconds_bucket{rule="payments/*/refunds:refunds",le="3"} 2`,
		`headway_wait_seconds_count{rule="payments/*/refunds:refunds"} 2`,
		`headway_decision_seconds_count 7`,
		`headway_decision_seconds_bucket{le="0.003"} 3`,
	)
}

func TestTasks(t *testing.T) {
	t.Parallel()
	m := New(Config{Version: "v1"})
	m.PickedUp("default")
	m.PickedUp("default")
	m.PickedUp("low")
	m.Ran("default", "done", 2*time.Second)
	m.Ran("default", "failed", time.Millisecond)
	m.Rescheduled("low", 40*time.Second)
	m.Holding(1)
	m.Holding(1)
	m.Holding(-1)
	m.Held(20 * time.Millisecond)
	m.LeaseHeld("search:parallel", 1)
	m.LeaseHeld("search:parallel", 1)
	m.LeaseHeld("search:parallel", -1)
	m.Failed("release")
	for _, up := range []bool{true, true, false, false, true, false} {
		m.RedisUp(up)
	}
	wantLines(t, scrape(t, m),
		`headway_pickups_total{queue="default"} 2`,
		`headway_pickups_total{queue="low"} 1`,
		`headway_runs_total{outcome="done",queue="default"} 1`,
		`headway_runs_total{outcome="failed",queue="default"} 1`,
		`headway_run_seconds_count{queue="default"} 2`,
		`headway_rescheduled_total{queue="low"} 1`,
		`headway_rescheduled_seconds_bucket{queue="low",le="60"} 1`,
		`headway_held 1`,
		`headway_hold_seconds_count 1`,
		`headway_leases{rule="search:parallel"} 1`,
		`headway_errors_total{kind="release"} 1`,
		`headway_redis_up 0`,
		`headway_redis_outages_total 2`,
		`headway_build_info{version="v1"} 1`,
	)
}

// TestRedisDownFromTheStart holds that the first answer may be a refusal.
func TestRedisDownFromTheStart(t *testing.T) {
	t.Parallel()
	m := New(Config{})
	m.RedisUp(false)
	wantLines(t, scrape(t, m), "headway_redis_up 0", "headway_redis_outages_total 1")
}

// TestLabelsHoldNoTenant holds that rule is "the place of a rule in the policy
// …, never the tenant that the star stood for".
func TestLabelsHoldNoTenant(t *testing.T) {
	t.Parallel()
	policy, err := limitsyaml.Parse("limits.yaml", []byte("limits: {payments: {scopes: {'*': {rules: [{name: tenant, algorithm: concurrency, limit: 4}]}}}}"))
	if err != nil {
		t.Fatal(err)
	}
	m := New(Config{})
	limiter, err := throttle.New(redistest.Client(t), policy, throttle.Config{Observer: m, Prefix: redistest.Prefix(t)})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := limiter.Allow(t.Context(), "payments/acme"); err != nil {
		t.Fatal(err)
	}
	page := scrape(t, m)
	wantLines(t, page, `headway_decisions_total{outcome="allowed",rule="payments/*:tenant"} 1`)
	if strings.Contains(page, "acme") {
		t.Error("the page names the tenant")
	}
}

// TestBounded holds that labels are bounded: "Beyond the first Config.MaxRules
// rules, further ones are counted together as rule="other"".
func TestBounded(t *testing.T) {
	t.Parallel()
	m := New(Config{})
	const rules = 1500
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			for i := g; i < rules; i += 4 {
				m.Decided(one(fmt.Sprintf("p%d", i), "r"), time.Millisecond, nil)
				m.PickedUp(fmt.Sprintf("q%d", i))
				m.Failed(fmt.Sprintf("k%d", i))
				m.Ran(fmt.Sprintf("q%d", i), fmt.Sprintf("o%d", i), time.Second)
			}
		})
	}
	wg.Wait()
	page := scrape(t, m)
	for pattern, want := range map[string]int{
		`headway_decisions_total\{outcome="allowed",rule="`: 1001,
		`headway_pickups_total\{`:                           maxQueues + 1,
		`headway_errors_total\{`:                            maxKinds + 1,
	} {
		if n := len(regexp.MustCompile("(?m)^"+pattern).FindAllString(page, -1)); n != want {
			t.Errorf("%s: %d series, want %d", pattern, n, want)
		}
	}
	outcomes := make(map[string]bool)
	for _, line := range regexp.MustCompile(`(?m)^headway_runs_total\{outcome="([^"]*)"`).FindAllStringSubmatch(page, -1) {
		outcomes[line[1]] = true
	}
	if len(outcomes) != maxOutcomes+1 {
		t.Errorf("%d outcomes, want %d", len(outcomes), maxOutcomes+1)
	}
	wantLines(t, page, `headway_decisions_total{outcome="allowed",rule="other"} 500`)
	m.LeaseHeld("p9999:r", 1) // a rule that came too late
	wantLines(t, scrape(t, m), `headway_leases{rule="other"} 1`)
}

// TestHostileLabels holds that no text makes Prometheus panic or a page break.
func TestHostileLabels(t *testing.T) {
	t.Parallel()
	m := New(Config{Version: "\xff"})
	m.Decided(one("a\xff\"\n{}", "r"), time.Millisecond, nil)
	m.PickedUp("\xc3\x28")
	m.Failed("")
	wantLines(t, scrape(t, m), "headway_decisions_total{outcome=\"allowed\",rule=\"a\uFFFD\\\"\\n{}:r\"} 1")
}

// TestTwoAtOnce holds that nothing is registered globally: two can live in one
// process.
func TestTwoAtOnce(t *testing.T) {
	t.Parallel()
	a, b := New(Config{}), New(Config{})
	a.Failed("x")
	wantLines(t, scrape(t, a), `headway_errors_total{kind="x"} 1`)
	if page := scrape(t, b); strings.Contains(page, "headway_errors_total{") {
		t.Error("one counts for the other")
	}
	wantLines(t, scrape(t, b), "# TYPE go_goroutines gauge")
}

// TestLooks holds that the age of a look grows by itself, that of providers with one
// label the oldest counts, and that it is "absent where nobody waits".
func TestLooks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := New(Config{})
		m.DispatcherPolled("payments", "payments", true)
		m.DispatcherPolled("a customer", "*", true)
		<-time.After(3 * time.Second)
		m.DispatcherPolled("another", "*", true)
		<-time.After(1500 * time.Millisecond)
		wantLines(t, scrape(t, m), `headway_dispatcher_last_poll_age_seconds{provider="payments"} 4.5`, `headway_dispatcher_last_poll_age_seconds{provider="*"} 4.5`)
		m.DispatcherPolled("payments", "payments", true)
		m.DispatcherPolled("a customer", "*", false)
		wantLines(t, scrape(t, m), `headway_dispatcher_last_poll_age_seconds{provider="payments"} 0`, `headway_dispatcher_last_poll_age_seconds{provider="*"} 1.5`)
		m.DispatcherPolled("payments", "payments", false)
		m.DispatcherPolled("another", "*", false)
		if page := scrape(t, m); strings.Contains(page, "headway_dispatcher_last_poll_age_seconds{") {
			t.Error("nobody waits, and a look is told")
		}
	})
}

// Refused tasks that are away are told as a gauge, which falls by itself when they come again.
func TestRefusedTasks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := New(Config{})
		m.Refused("default", "unmatched", 10*time.Second)
		m.Refused("default", "unmatched", 20*time.Second)
		m.Refused("low", "cost", 10*time.Second)
		wantLines(t, scrape(t, m), `headway_refused_tasks{queue="default",why="unmatched"} 2`, `headway_refused_tasks{queue="low",why="cost"} 1`,
			`headway_refused_total{queue="default",why="unmatched"} 2`)
		<-time.After(13 * time.Second)
		wantLines(t, scrape(t, m), `headway_refused_tasks{queue="default",why="unmatched"} 1`)
		<-time.After(10 * time.Second)
		if page := scrape(t, m); strings.Contains(page, "headway_refused_tasks{") {
			t.Error("nobody waits, and tasks are told")
		}
	})
}

// "The label trace_id of a bucket is the trace of one wait or run in it", in OpenMetrics alone.
func TestExemplars(t *testing.T) {
	t.Parallel()
	type key struct{}
	m := New(Config{TraceID: func(ctx context.Context) string {
		id, _ := ctx.Value(key{}).(string)
		return id
	}})
	in := func(id string) context.Context { return context.WithValue(context.Background(), key{}, id) }
	denied := one("payments", "account")
	denied.Allowed, denied.Rules[0].Limited, denied.Rules[0].RetryAfter = false, true, 2*time.Second
	m.DecidedIn(in("aaaa"), denied, time.Millisecond, nil)
	m.DecidedIn(in("never"), one("payments", "account"), time.Millisecond, nil)
	m.RanIn(in("bbbb"), "default", "ok", 20*time.Millisecond)
	m.RanIn(in(""), "default", "ok", 2*time.Second)
	for _, id := range []string{strings.Repeat("x", 200), "\xff"} { // what an exemplar cannot have
		m.RanIn(in(id), "default", "ok", 20*time.Minute)
	}
	r := httptest.NewRequestWithContext(context.Background(), http.MethodGet, "/metrics", nil)
	r.Header.Set("Accept", "application/openmetrics-text; version=1.0.0")
	w := httptest.NewRecorder()
	m.Handler().ServeHTTP(w, r)
	page := w.Body.String()
	for _, pattern := range []string{
		`headway_wait_seconds_bucket\{rule="payments:account",le="3.0"\} 1 # \{trace_id="aaaa"\} 2.0 `,
		`headway_run_seconds_bucket\{queue="default",le="0.03"\} 1 # \{trace_id="bbbb"\} 0.02 `,
		`headway_run_seconds_bucket\{queue="default",le="3.0"\} 2\n`,
		`headway_run_seconds_count\{queue="default"\} 4\n`,
	} {
		if !regexp.MustCompile(pattern).MatchString(page) {
			t.Errorf("no %s", pattern)
		}
	}
	if n := strings.Count(page, "trace_id"); n != 2 {
		t.Errorf("%d exemplars, want 2", n)
	}
	if strings.Contains(scrape(t, m), "trace_id") {
		t.Error("the text format has exemplars")
	}
}

var _ throttle.ContextObserver = (*Metrics)(nil)
