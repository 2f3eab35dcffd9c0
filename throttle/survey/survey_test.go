package survey

import (
	"fmt"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/internal/waitlist"
	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/throttletest"
)

const sec = time.Second

func TestMain(m *testing.M) { os.Exit(redistest.Main(m)) }

// surveyed is a policy with rules at a name, at stars, and at a scope of its own beside a star.
const surveyed = `
limits:
  p:
    rules:
      - {name: account, algorithm: sliding-window, limit: 6, per: 10s}
      - {name: trial, algorithm: sliding-window, limit: 1, per: 1s, shadow: true}
    scopes:
      "*":
        rules:
          - {name: tenant, algorithm: token-bucket, limit: 1, per: 1s, burst: 2}
          - {name: tokens, algorithm: fixed-window, limit: 100, per: 10s, unit: tokens}
      big: {rules: [{name: runs, algorithm: concurrency, limit: 2}]}
  q: {rules: [{name: other, algorithm: sliding-window, limit: 5, per: 1s}]}
`

func limiter(t testing.TB, rdb redis.UniversalClient) *throttle.Limiter {
	t.Helper()
	l, err := throttle.New(rdb, throttletest.Policy(t, surveyed), throttle.Config{Prefix: redistest.Prefix(t), StartTolerance: -1})
	must(t, err)
	return l
}

var must = redistest.Must

func read(t testing.TB, l *throttle.Limiter) Survey {
	t.Helper()
	got, err := Read(t.Context(), l)
	must(t, err)
	return got
}

func join(t testing.TB, l *throttle.Limiter, scope string, ids ...string) {
	t.Helper()
	var tasks []waitlist.Waiter
	for _, id := range ids {
		tasks = append(tasks, waitlist.Waiter{Scope: scope, Queue: "default", ID: id})
	}
	_, err := l.Waitlist().Join(t.Context(), tasks)
	must(t, err)
}

// rule is the rule of a survey with a name of its own.
func (s Survey) rule(t *testing.T, name string) Rule {
	t.Helper()
	for _, r := range s.Rules {
		if r.Rule == name {
			return r
		}
	}
	t.Fatalf("no rule %s: %+v", name, s.Rules)
	return Rule{}
}

// A survey has each rule's limit, what is used of it, what waits for it in all scopes, and when that is done.
func TestSurvey(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		_, rdb := redistest.Miniredis(t)
		l, began := limiter(t, rdb), time.Now()
		idle := read(t, l)
		if len(idle.Rules) != 5 || len(idle.Queues) != 0 || idle.Partial || !idle.At.Equal(began) {
			t.Errorf("nothing waits: %+v", idle)
		}
		if r := idle.rule(t, "tenant"); r.Pattern != "p/*" || !r.Read || r.Limit != 2 { // of p/big, which the policy names
			t.Errorf("nothing waits: %+v", r)
		}
		for _, scope := range []string{"p/a", "p/a", "p/b", "p/b"} {
			if d, err := l.Allow(t.Context(), scope); err != nil || !d.Allowed {
				t.Fatalf("got %+v, %v", d, err)
			}
		}
		join(t, l, "p/a", "a0", "a1", "a2", "a3", "a4", "a5", "a6", "a7", "a8", "a9")
		join(t, l, "p/b", "b0")
		<-time.After(5 * sec)
		got := read(t, l)
		account, tenant := got.rule(t, "account"), got.rule(t, "tenant")
		if account.Used != 4 || account.Waiting != 11 || account.Queues != 2 || account.Unit != policy.Requests {
			t.Errorf("%+v", account)
		}
		if in := account.DoneIn; in < 10*sec || in > 20*sec { // 2 now, 4 when the first leave their window, 2 and 3 of the next
			t.Errorf("account is done in %v", in)
		}
		if tenant.Used != 0 || tenant.Waiting != 11 || tenant.Queues != 2 || tenant.DoneIn != 8*sec {
			t.Errorf("where most waits: %+v", tenant)
		}
		if r := got.rule(t, "runs"); r.Waiting != 0 || r.Used != 0 {
			t.Errorf("%+v", r)
		}
		if len(got.Queues) != 2 || got.Queues[0].Scope != "p/a" || got.Queues[0].Tasks != 10 || got.Queues[0].First != (waitlist.Ref{Scope: "p/a", Queue: "default", ID: "a0"}) {
			t.Fatalf("%+v", got.Queues)
		}
		// The tenants' buckets are full again, and the account has room for two.
		if got.Queues[0].Ready != 2 || got.Queues[1].Ready != 0 {
			t.Errorf("ready: %+v", got.Queues)
		}
		for _, at := range got.Queues[0].Rules {
			if r := got.Rules[at]; r.Rule == "runs" || r.Rule == "other" || r.Rule == "trial" {
				t.Errorf("p/a meets %+v", r)
			}
		}
	})
}

// A survey costs one command and one a scope while nothing waits, and one more for each scope in which tasks wait.
func TestSurveyCost(t *testing.T) {
	t.Parallel()
	rdb := redistest.NewServer(t).Client(t)
	l := limiter(t, rdb)
	survey := func() map[string]int { return redistest.Commands(t, rdb, func() { read(t, l) }) }
	survey() // the scripts are known
	if idle := survey(); idle["evalsha"] != 2 || idle["zrangebyscore"] != 1 {
		t.Errorf("nothing waits: %v", idle)
	}
	var tasks []waitlist.Waiter
	for n := range 3000 {
		tasks = append(tasks, waitlist.Waiter{Scope: fmt.Sprint("p/", n%1500), Queue: "default", ID: fmt.Sprint(n)})
	}
	_, err := l.Waitlist().Join(t.Context(), tasks)
	must(t, err)
	many := survey()
	if many["evalsha"] > surveyedPaths+2 || many["zcard"] != 1500 || many["zrange"] != surveyedHeads || many["hscan"] > 10 {
		t.Errorf("1500 scopes: %v", many)
	}
	got := read(t, l)
	if r := got.rule(t, "account"); r.Waiting != 3000 || r.Queues != 1500 || len(got.Queues) != surveyedHeads || got.Partial {
		t.Errorf("%+v, %d queues, %t", r, len(got.Queues), got.Partial)
	}
}
