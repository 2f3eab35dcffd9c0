package throttle

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle/policy"
)

func (b *bench) survey() Survey {
	b.t.Helper()
	for _, provider := range []string{"p", "q"} { // as workers do when tasks wait
		noError(b.t, b.Waitlist().PublishActive(context.Background(), provider))
	}
	got, err := b.Waitlist().Survey(context.Background())
	noError(b.t, err)
	return got
}

// rule is the rule of a survey with a name of its own.
func (s Survey) rule(t *testing.T, name string) RuleSurvey {
	t.Helper()
	for _, r := range s.Rules {
		if r.Rule == name {
			return r
		}
	}
	t.Fatalf("no rule %s: %+v", name, s.Rules)
	return RuleSurvey{}
}

// surveyed is a policy with rules at a name, at stars, and at a scope of its own beside a star.
func surveyed(t testing.TB) *policy.Policy {
	t.Helper()
	return limitsOf(t, map[string]policy.ScopeConfig{
		"p": {
			Rules: []policy.Rule{
				{Name: "account", Algorithm: policy.SlidingWindow, Limit: 6, Per: 10 * sec},
				{Name: "trial", Algorithm: policy.SlidingWindow, Limit: 1, Per: sec, Shadow: true},
			},
			Scopes: map[string]policy.ScopeConfig{
				"*": {Rules: []policy.Rule{
					{Name: "tenant", Algorithm: policy.TokenBucket, Limit: 1, Per: sec, Burst: 2},
					{Name: "tokens", Algorithm: policy.FixedWindow, Limit: 100, Per: 10 * sec, Unit: "tokens"},
				}},
				"big": {Rules: []policy.Rule{{Name: "runs", Algorithm: policy.Concurrency, Limit: 2}}},
			},
		},
		"q": {Rules: []policy.Rule{{Name: "other", Algorithm: policy.SlidingWindow, Limit: 5, Per: sec}}},
	})
}

// A survey has each rule's limit, what is used of it, what waits for it in all scopes, and when that is done.
func TestSurvey(t *testing.T) {
	t.Parallel()
	onBoth(t, Config{}, surveyed(t), func(b *bench) {
		idle := b.survey()
		if len(idle.Rules) != 5 || len(idle.Queues) != 0 || idle.Partial || idle.At != time.UnixMicro(epoch) {
			b.t.Errorf("nothing waits: %+v", idle)
		}
		if r := idle.rule(b.t, "tenant"); r.Pattern != "p/*" || !r.Read || r.Limit != 2 { // of p/big, which the policy names
			b.t.Errorf("nothing waits: %+v", r)
		}
		for n := range 12 { // 2 of a start, 10 wait
			b.ask("p/a", fmt.Sprint("default/a", n), 1)
		}
		for n := range 3 { // 2 start
			b.ask("p/b", fmt.Sprint("default/b", n), 1)
		}
		b.now.Add(5000 * int64(ms) / 1000)
		got := b.survey()
		account, tenant := got.rule(b.t, "account"), got.rule(b.t, "tenant")
		if account.Used != 4 || account.Waiting != 11 || account.Queues != 2 || account.Unit != policy.Requests {
			b.t.Errorf("%+v", account)
		}
		if in := account.DoneIn; in < 10*sec || in > 20*sec { // 2 now, 4 when the first leave their window, 2 and 3 of the next
			b.t.Errorf("account is done in %v", in)
		}
		if tenant.Used != 0 || tenant.Waiting != 11 || tenant.Queues != 2 || tenant.DoneIn != 8*sec {
			b.t.Errorf("where most waits: %+v", tenant)
		}
		if r := got.rule(b.t, "runs"); r.Waiting != 0 || r.Used != 0 {
			b.t.Errorf("%+v", r)
		}
		if len(got.Queues) != 2 || got.Queues[0].Scope != "p/a" || got.Queues[0].Tasks != 10 || got.Queues[0].First.ID != "default/a2" {
			b.t.Fatalf("%+v", got.Queues)
		}
		// The tenants' buckets are full again, and the account has room for two.
		if got.Queues[0].Ready != 2 || got.Queues[1].Ready != 0 {
			b.t.Errorf("ready: %+v", got.Queues)
		}
		if since := got.At.Sub(got.Queues[0].Joined); since < 5*sec-2*ms || since > 5*sec+2*ms {
			b.t.Errorf("the first joined %v ago", since)
		}
		for _, at := range got.Queues[0].Rules {
			if r := got.Rules[at]; r.Rule == "runs" || r.Rule == "other" || r.Rule == "trial" {
				b.t.Errorf("p/a meets %+v", r)
			}
		}
	})
}

// A survey costs one command and one a scope while nothing waits, and a bounded number however many queues there are.
func TestSurveyCost(t *testing.T) {
	t.Parallel()
	server := redistest.NewServer(t)
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
	t.Cleanup(func() { _ = rdb.Close() })
	b := newBench(t, rdb, Config{}, surveyed(t))
	survey := func() (got Survey) {
		got, err := b.Waitlist().Survey(context.Background())
		noError(t, err)
		return got
	}
	survey() // the scripts are known
	cost := func() map[string]int { return redistest.Commands(t, rdb, func() { survey() }) }
	if idle := cost(); idle["evalsha"] != 2 || idle["zrangebyscore"] != 1 {
		t.Errorf("nothing waits: %v", idle)
	}
	var asks []Waiter
	for n := range 3000 {
		asks = append(asks, Waiter{Scope: fmt.Sprint("p/", n%1500), ID: fmt.Sprint("default/", n)})
	}
	for n := 0; n < len(asks); n += 500 {
		if _, err := b.Waitlist().Join(context.Background(), asks[n:n+500], 0, 0); err != nil {
			t.Fatal(err)
		}
	}
	many := cost()
	if many["evalsha"] > surveyedPaths+2 || many["zcard"] != surveyedHeads || many["zrange"] != surveyedHeads || many["zrangebylex"]+many["hmget"] > 10 {
		t.Errorf("1500 queues: %v", many)
	}
	got := survey()
	if r := got.rule(t, "account"); r.Waiting < 2900 || r.Queues != 1500 || len(got.Queues) != surveyedHeads || got.Partial {
		t.Errorf("%+v, %d queues, %t", r, len(got.Queues), got.Partial)
	}
}
