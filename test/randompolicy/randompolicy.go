// Package randompolicy draws policies at random, for tests of what reads, writes and resolves them.
package randompolicy

import (
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/wallclock"
)

// Limits returns a tree of valid rules with names out of names, which may hold "*". Some have the tier gold below them.
func Limits(random *rand.Rand, names []string, levels int) map[string]policy.ScopeConfig {
	if levels == 0 {
		return nil
	}
	limits := map[string]policy.ScopeConfig{}
	for range 1 + random.IntN(3) {
		var node policy.ScopeConfig
		for _, name := range slices.Compact(slices.Sorted(slices.Values(names))) {
			if random.IntN(2*len(names)) < 3 {
				node.Rules = append(node.Rules, Rule(random, name))
			}
		}
		switch random.IntN(4) {
		case 0:
			node.Answers = pick(random, policy.AnswersHeed, policy.AnswersRefusals, policy.AnswersPause, policy.AnswersIgnore)
		case 1:
			node.Corrects = policy.Corrects{Cut: 1 + random.Int64N(90), Grow: random.Int64N(101), Most: 100 + random.Int64N(901)}
		}
		if node.Answers != policy.AnswersIgnore && random.IntN(4) == 0 {
			node.Refusals = policy.Refusals{Pause: time.Duration(100+random.IntN(1000)) * time.Millisecond, Count: random.IntN(2) == 0}
		}
		if random.IntN(4) == 0 {
			node.Breaker = policy.Breaker{Failures: 1 + random.Int64N(100), Of: random.Int64N(1001), Wait: time.Duration(random.IntN(601)) * time.Second, KeepAttempts: random.IntN(2) == 0}
		}
		random.Shuffle(len(node.Rules), func(i, j int) { node.Rules[i], node.Rules[j] = node.Rules[j], node.Rules[i] })
		if random.IntN(4) > 0 {
			node.Scopes = Limits(random, names, levels-1)
		}
		if below, has := node.Scopes["*"]; has && random.IntN(2) == 0 {
			below.Pool = policy.Pool{}
			node.Tiers = map[string]policy.ScopeConfig{"gold": below}
		}
		isMember := func(name string) bool { return strings.HasPrefix(name, "@") }
		if levels == 2 && random.IntN(4) == 0 && !slices.ContainsFunc(names, isMember) {
			node.Pool = pool(random)
		}
		limits[names[random.IntN(len(names))]] = node
	}
	return limits
}

// pool returns a valid pool.
func pool(random *rand.Rand) policy.Pool {
	p := policy.Pool{Choose: pick(random, "", policy.ChooseSpread, policy.ChooseDrain)}
	for _, name := range []string{"alice", "bob: x", "7"}[:1+random.IntN(3)] {
		m := policy.Member{Name: name, Priority: random.Int64N(201) - 100}
		if p.Choose != policy.ChooseDrain {
			m.Weight = random.Int64N(3)
		}
		p.Members = append(p.Members, m)
	}
	if p.Choose != policy.ChooseDrain {
		p.Affinity = pick(random, policy.AffinityNone, policy.AffinityTenant)
	}
	if p.Affinity != policy.AffinityNone {
		p.AffinityWait = pick(random, 0, 1500*time.Millisecond)
	}
	if p.Choose == policy.ChooseDrain {
		p.OverflowAfter = pick(random, 0, 90*time.Second)
	}
	p.Quarantine = pick(random, 0, time.Minute, 90*time.Minute)
	return p
}

// Rule returns a valid rule.
func Rule(random *rand.Rand, name string) policy.Rule {
	if strings.HasSuffix(name, ":") { // which only the fields of a scope have in the history
		name += "."
	}
	micros := func(most time.Duration) time.Duration {
		n := 1 + random.Int64N(most.Microseconds())
		if random.IntN(2) == 0 { // round ones too
			n = max(1, n/1_000_000*1_000_000)
		}
		return time.Duration(n) * time.Microsecond
	}
	maybe := func() bool { return random.IntN(3) == 0 }
	r := policy.Rule{Name: name, Algorithm: pick(random, policy.TokenBucket, policy.SlidingWindow, policy.FixedWindow, policy.Concurrency, policy.Calendar), Limit: random.Int64N(policy.MaxLimit + 1)}
	if maybe() {
		return policy.Rule{Name: name, Unlimited: true}
	}
	if maybe() {
		r.OnRedisError = pick(random, policy.FailClosed, policy.FailOpen, policy.FailShare)
	}
	if maybe() {
		r.MaxWait = micros(policy.MaxTime)
	}
	if r.Shadow = maybe(); maybe() {
		r.Active = wallclock.MustParseWindow(pick(random, "* 8-19 * * 1-5", "30-59 2 * * sun"), pick(random, "", "UTC", "America/New_York"))
	}
	if r.Algorithm == policy.Concurrency {
		if maybe() {
			r.Lease = max(time.Second, micros(24*time.Hour))
		}
		return r
	}
	if r.Unit = pick(random, "", "", "tokens"); maybe() {
		r.Cap = 1 + random.Int64N(100)
	}
	if r.Algorithm == policy.Calendar {
		zone := pick(random, "", "UTC", "America/Los_Angeles", "Asia/Kathmandu")
		if r.Active != nil { // a rule has one time zone
			zone = r.Active.Zone()
		}
		r.Resets = wallclock.MustParse(pick(random, "0 0 * * *", "@monthly", "*/5 9-17 1,15 * mon-fri", "30 2 29 2 *"), zone)
		if r.Spread = maybe(); maybe() {
			r.Rollover = random.Int64N(policy.MaxLimit + 1)
		}
		return r
	}
	r.Per = micros(policy.MaxTime)
	if maybe() && r.Per >= 4*time.Microsecond {
		r.Margin = micros(r.Per / 4)
	}
	r.OpensOnUse = r.Algorithm == policy.FixedWindow && maybe()
	if r.Algorithm == policy.TokenBucket && maybe() {
		r.Limit = max(r.Limit, 1<<30)
		r.Burst = 1 + random.Int64N(1<<20)
	}
	return r
}

func pick[T any](random *rand.Rand, from ...T) T { return from[random.IntN(len(from))] }
