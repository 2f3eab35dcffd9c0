package riverlimit

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/riverqueue/river/rivertype"

	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
)

// job is a job as River keeps it: its metadata is what its attempts have noted, and it is due after a snooze.
type job struct {
	m       *Middleware
	noted   map[string]any
	pickups int
}

type notesKey struct{}

// attempt works the job once, and returns the length of its snooze if it was snoozed.
func (j *job) attempt(ctx context.Context, work func(context.Context) error) (snooze time.Duration, snoozed bool, err error) {
	j.pickups++
	metadata, _ := json.Marshal(j.noted)
	notes := map[string]any{}
	err = j.m.Work(context.WithValue(ctx, notesKey{}, notes), &rivertype.JobRow{ID: 7, Metadata: metadata}, work)
	for key, value := range notes {
		j.noted[key] = value
	}
	var s *rivertype.JobSnoozeError
	if errors.As(err, &s) {
		return s.Duration, true, nil
	}
	return 0, false, err
}

// reserved returns the attempt id of the start that the job has.
func (j *job) reserved() string {
	id, _ := j.noted[reservedKey].(string)
	return id
}

// work has the job worked to its end by a River that looks for jobs once a second.
func (j *job) work(t *testing.T, run func(context.Context) error) {
	t.Helper()
	for {
		snooze, snoozed, err := j.attempt(t.Context(), run)
		if !snoozed {
			redistest.Must(t, err)
			return
		}
		<-time.After(snooze)
		<-time.After(time.Until(time.Now().Truncate(time.Second).Add(time.Second)))
	}
}

func middleware(t *testing.T, cfg Config, rules ...policy.Rule) (*Middleware, func() *job) {
	t.Helper()
	_, rdb := redistest.Miniredis(t)
	p, err := policy.New(policy.UnmatchedFail, map[string]policy.ScopeConfig{"mail": {Rules: rules}})
	redistest.Must(t, err)
	limiter, err := throttle.New(rdb, p, throttle.Config{})
	redistest.Must(t, err)
	if cfg.Scope == nil {
		cfg.Scope = func(*rivertype.JobRow) (string, error) { return "mail/acme", nil }
	}
	m, err := New(limiter, cfg)
	redistest.Must(t, err)
	m.note = func(ctx context.Context, key string, value any) error {
		ctx.Value(notesKey{}).(map[string]any)[key] = value //nolint:forcetypeassert // see attempt
		return nil
	}
	return m, func() *job { return &job{m: m, noted: map[string]any{}} }
}

func window(limit int64, per time.Duration) policy.Rule {
	return policy.Rule{Name: "account", Algorithm: policy.SlidingWindow, Limit: limit, Per: per}
}

func (m *Middleware) left(t *testing.T) int64 {
	t.Helper()
	d, err := m.limiter.Peek(t.Context(), throttle.Request{Scope: "mail/acme"})
	redistest.Must(t, err)
	return d.Rules[0].Remaining
}

func nothing(context.Context) error { return nil }

// "A job has a turn of its own": 40 jobs of a limit of one a second use it all, and none is picked up again and again.
func TestTurns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		_, newJob := middleware(t, Config{}, window(1, time.Second))
		const n = 40
		var starts []time.Time
		var mu sync.Mutex
		var all sync.WaitGroup
		jobs := make([]*job, n)
		for i := range jobs {
			jobs[i] = newJob()
			all.Go(func() {
				jobs[i].work(t, func(context.Context) error {
					mu.Lock()
					defer mu.Unlock()
					starts = append(starts, time.Now())
					return nil
				})
			})
		}
		all.Wait()
		for i := range n - 1 {
			if gap := starts[i+1].Sub(starts[i]); gap < time.Second {
				t.Errorf("start %d after %s", i+1, gap)
			}
		}
		if took := starts[n-1].Sub(starts[0]); took > n*time.Second+time.Second {
			t.Errorf("%d jobs at one a second in %s", n, took)
		}
		pickups := 0
		for _, j := range jobs {
			pickups += j.pickups
		}
		if most := slices.MaxFunc(jobs, func(a, b *job) int { return a.pickups - b.pickups }).pickups; most > 4 || pickups > 3*n {
			t.Errorf("up to %d pick-ups a job, %d of %d jobs", most, pickups, n)
		}
	})
}

// A run that was interrupted comes back in the same attempt, and is charged again; a wait that was interrupted gives its start back.
func TestInterrupted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m, newJob := middleware(t, Config{}, window(2, 10*time.Second))
		redistest.Must(t, errors.Join(take(t, m, "a"), take(t, m, "b")))
		j := newJob()
		snooze, snoozed, err := j.attempt(t.Context(), nothing)
		redistest.Must(t, err)
		if !snoozed || snooze < 8*time.Second || j.reserved() == "" {
			t.Fatalf("snoozed %s with the start %q", snooze, j.reserved())
		}
		<-time.After(snooze)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, _, err := j.attempt(ctx, nothing); !errors.Is(err, context.DeadlineExceeded) || j.reserved() != "" {
			t.Errorf("%v, and it has the start %q", err, j.reserved())
		}
		stopped := errors.New("stopped")
		<-time.After(time.Second)
		for left := range int64(2) { // a limit of 2
			if _, _, err := j.attempt(t.Context(), func(context.Context) error { return stopped }); !errors.Is(err, stopped) {
				t.Fatal(err)
			}
			if n := m.left(t); n != 1-left {
				t.Errorf("%d left after %d runs", n, left+1)
			}
		}
	})
}

func take(t *testing.T, m *Middleware, id string) error {
	t.Helper()
	_, err := m.limiter.Decide(t.Context(), throttle.Request{Scope: "mail/acme", ID: id})
	return err
}

// A job keeps its place under a concurrency rule while it works, and none while it is snoozed.
func TestPlaces(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m, newJob := middleware(t, Config{}, policy.Rule{Name: "at-once", Algorithm: policy.Concurrency, Limit: 1, Lease: 3 * time.Second})
		end, ended := make(chan bool), make(chan error)
		go func() {
			_, _, err := newJob().attempt(t.Context(), func(ctx context.Context) error {
				if GrantOf(ctx).Zero() {
					t.Error("the handler has no grant")
				}
				<-end
				return context.Cause(ctx)
			})
			ended <- err
		}()
		<-time.After(10 * time.Second) // longer than the lease
		j := newJob()
		snooze, snoozed, err := j.attempt(t.Context(), nothing)
		redistest.Must(t, err)
		if !snoozed || snooze > time.Second || j.reserved() != "" {
			t.Errorf("snoozed %t for %s, with the start %q", snoozed, snooze, j.reserved())
		}
		if snooze, _, _ = newJob().attempt(t.Context(), nothing); snooze < time.Second {
			t.Errorf("the next one is snoozed for %s", snooze)
		}
		end <- true
		redistest.Must(t, <-ended)
		if _, snoozed, err := j.attempt(t.Context(), nothing); snoozed || err != nil || m.left(t) != 1 {
			t.Errorf("snoozed %t, %v, %d left", snoozed, err, m.left(t))
		}
	})
}

// What an API answers to one job applies to all: a 429 is no failed attempt, and its pause holds for reserved starts.
func TestAnswers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m, newJob := middleware(t, Config{}, window(2, 5*time.Second))
		waits := newJob()
		ask := func(j *job, status int) (time.Duration, bool, error) {
			return j.attempt(t.Context(), func(ctx context.Context) error {
				resp := &http.Response{StatusCode: status, Header: http.Header{}, Request: httptest.NewRequest(http.MethodGet, "https://mail.test/", nil)}
				if status == http.StatusTooManyRequests {
					resp.Header.Set("Retry-After", "30")
				}
				return ReportResponse(ctx, resp)
			})
		}
		if _, snoozed, err := ask(newJob(), http.StatusOK); snoozed || err != nil {
			t.Fatalf("snoozed %t, %v", snoozed, err)
		}
		redistest.Must(t, take(t, m, "a"))
		if snooze, snoozed, err := waits.attempt(t.Context(), nothing); !snoozed || err != nil || waits.reserved() == "" {
			t.Fatalf("snoozed %t for %s, %v", snoozed, snooze, err)
		}
		<-time.After(4 * time.Second)
		refused := newJob()
		if snooze, snoozed, err := ask(refused, http.StatusTooManyRequests); !snoozed || snooze != 30*time.Second || err != nil {
			t.Fatalf("snoozed %t for %s, %v", snoozed, snooze, err)
		}
		if snooze, snoozed, err := waits.attempt(t.Context(), nothing); !snoozed || snooze < 10*time.Second || err != nil {
			t.Errorf("during the pause: snoozed %t for %s, %v", snoozed, snooze, err)
		}
	})
	if err := ReportResponse(t.Context(), nil); err != nil || !GrantOf(t.Context()).Zero() {
		t.Errorf("outside of a job: %v", err)
	}
}

// Nothing is decided while Redis is away, and no attempt is used up. A limit of 0 has its jobs look once in MaxSnooze.
func TestNothingStarts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		_, newJob := middleware(t, Config{MaxSnooze: time.Hour}, window(0, time.Second))
		for range 3 {
			if snooze, snoozed, err := newJob().attempt(t.Context(), nothing); !snoozed || snooze != time.Hour {
				t.Errorf("snoozed %t for %s, %v", snoozed, snooze, err)
			}
		}
		redis, rdb := redistest.Miniredis(t)
		limiter, err := throttle.New(rdb, policy.PerSecond("mail", 1), throttle.Config{})
		redistest.Must(t, err)
		redis.SetError("LOADING")
		j := newJob()
		j.m.limiter = limiter
		if snooze, snoozed, err := j.attempt(t.Context(), nothing); !snoozed || snooze < outageSnooze || snooze > 2*outageSnooze {
			t.Errorf("snoozed %t for %s, %v", snoozed, snooze, err)
		}
	})
}

// Jobs without a scope are not limited; a scope that cannot be limited is an error of the attempt.
func TestScopes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		scope, fault, ran := "", error(nil), 0
		_, newJob := middleware(t, Config{Scope: func(*rivertype.JobRow) (string, error) { return scope, fault }}, window(1, time.Hour))
		for _, c := range []struct {
			scope string
			fault error
			says  string
		}{{}, {"chat/acme", nil, "chat"}, {"mail//", nil, "mail//"}, {"", errors.New("no tenant"), "no tenant"}} {
			scope, fault = c.scope, c.fault
			_, snoozed, err := newJob().attempt(t.Context(), func(context.Context) error { ran++; return nil })
			if snoozed || (err != nil) != (c.says != "") || err != nil && !strings.Contains(err.Error(), c.says) {
				t.Errorf("%q: snoozed %t, %v", c.scope, snoozed, err)
			}
		}
		if ran != 1 {
			t.Errorf("%d ran", ran)
		}
	})
}

func TestPace(t *testing.T) {
	t.Parallel()
	rate := func(algorithm policy.Algorithm, limit int64, window time.Duration) throttle.RuleState {
		return throttle.RuleState{RuleInfo: &throttle.RuleInfo{Algorithm: algorithm, Limit: limit, Window: window, Unit: "tokens"}}
	}
	for _, c := range []struct {
		rule  throttle.RuleState
		costs policy.Costs
		gap   time.Duration
	}{
		{rate(policy.TokenBucket, 50, time.Second), nil, 20 * time.Millisecond},
		{rate(policy.TokenBucket, 50, time.Second), policy.Costs{"tokens": 5}, 100 * time.Millisecond},
		{rate(policy.Concurrency, 4, throttle.Never), policy.Costs{"tokens": 5}, 250 * time.Millisecond},
	} {
		if gap := gapOf(c.rule, c.costs); gap != c.gap {
			t.Errorf("%v of %v: %s, want %s", c.costs, c.rule.RuleInfo, gap, c.gap)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		var p paces
		for i, want := range []time.Duration{2, 5, 8, 10, 10} {
			if wait := p.after(paceOf{"mail", "account"}, 2*time.Second, 3*time.Second, 10*time.Second); wait != want*time.Second {
				t.Errorf("%d waits %s", i, wait)
			}
		}
		for i := range 2 * mostPaces {
			p.after(paceOf{"mail", string(rune(i))}, 0, time.Millisecond, time.Minute)
			<-time.After(time.Millisecond)
		}
		if len(p.next) > mostPaces+1 {
			t.Errorf("it remembers %d rules", len(p.next))
		}
	})
}

func TestNewNamesEachFault(t *testing.T) {
	t.Parallel()
	_, err := New(nil, Config{Hold: 40 * time.Second, MaxDelay: 30 * time.Second, MaxSnooze: -1})
	for _, says := range []string{"limiter", "Scope", "Hold is 40s", "MaxDelay is 30s", "MaxSnooze"} {
		if err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%v does not name %s", err, says)
		}
	}
}
