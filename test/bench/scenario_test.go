package bench

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/headway-go/headway/test/bench/figures"
	"github.com/headway-go/headway/throttle/policy"
)

// concurrency is that of every server here, where a scenario says nothing else.
const concurrency = 32

// scenario is a backlog under a policy.
type scenario struct {
	name  string
	tasks []job
	// limits is the policy's tree.
	limits map[string]policy.ScopeConfig
	// binding is the name of the rule that holds the tasks back, which the figures
	// are about, and level how many names of a scope it counts by.
	binding string
	level   int
	// watch is the beginning of the scopes that the figures are about. Defaults to all.
	watch string
	// workers is how many servers share the work. Defaults to 1.
	workers int
	// slots is the Concurrency of each. Defaults to concurrency.
	slots int
	// api makes every task call the counting API.
	api bool
	// costs are those of each task, and call is what it calls instead of the counting API. Default to one request, and to nothing.
	costs policy.Costs
	call  func(ctx context.Context, id string) error
	// lasts is how long a run takes, of a contender outside its call of the API. Defaults to no time, and to latency outside.
	lasts time.Duration
	// later has the built programs enqueue while the workers run. Defaults to before.
	later bool
	// outside is the contender's.
	outside bool
	// away is how far the servers are from Redis, each way. Defaults to beside it.
	away time.Duration
	// hogs is how many programs use a processor meanwhile.
	hogs int
	// jitter is by how much each piece on the way differs from away, either way.
	jitter time.Duration
	// idlePolls is how long to count what a server asks that has nothing left to do, to leave it
	// out of the commands. Defaults to counting it.
	idlePolls time.Duration
	// traces is how long after the end to look at what is left. Defaults to not looking.
	traces time.Duration
	// remark says what else is to be noted of an outcome. Defaults to nothing.
	remark func(outcome) string
	// picture makes the run one of the picture's.
	picture bool
}

// job is one task.
type job struct{ id, scope string }

// jobs returns n tasks that take turns in spending from the scopes.
func jobs(n int, scopes ...string) []job {
	all := make([]job, n)
	for i := range all {
		scope := scopes[i%len(scopes)]
		all[i] = job{fmt.Sprintf("%s#%d", scope, i), scope}
	}
	return all
}

// watched returns the tasks that the figures are about.
func (s scenario) watched() []job {
	var watched []job
	for _, j := range s.tasks {
		if strings.HasPrefix(j.scope, s.watch) {
			watched = append(watched, j)
		}
	}
	return watched
}

// concurrency is that of each of the scenario's servers.
func (s scenario) concurrency() int {
	if s.slots > 0 {
		return s.slots
	}
	return concurrency
}

// callLasts is how long the API takes for a call from outside.
func (s scenario) callLasts() time.Duration {
	if s.lasts > 0 {
		return s.lasts
	}
	return latency
}

// group returns the scope at which the binding rule counts a task.
func (s scenario) group(scope string) string {
	return strings.Join(strings.SplitN(scope, "/", s.level+1)[:s.level], "/")
}

// spell is how long a run of ours may take: half as much again as it need, and
// some seconds. What is not done by then is figured from what is.
func (s scenario) spell(rule figures.Rule) time.Duration {
	scopes := map[string]int64{}
	var most int64
	for _, j := range s.watched() {
		scopes[s.group(j.scope)]++
		most = max(most, scopes[s.group(j.scope)])
	}
	return rule.Ideal(most)*3/2 + 5*time.Second
}

// ruleNamed returns a rule of a tree.
func ruleNamed(limits map[string]policy.ScopeConfig, name string) (policy.Rule, bool) {
	for _, node := range limits {
		for _, r := range node.Rules {
			if r.Name == name {
				return r, true
			}
		}
		if r, ok := ruleNamed(node.Scopes, name); ok {
			return r, true
		}
	}
	return policy.Rule{}, false
}

// adapted returns a tree with every rule changed.
func adapted(limits map[string]policy.ScopeConfig, change func(policy.Rule) policy.Rule) map[string]policy.ScopeConfig {
	changed := map[string]policy.ScopeConfig{}
	for name, node := range limits {
		var rules []policy.Rule
		for _, r := range node.Rules {
			rules = append(rules, change(r))
		}
		changed[name] = policy.ScopeConfig{Rules: rules, Scopes: adapted(node.Scopes, change)}
	}
	return changed
}

// plain is a rule as the figures know it.
func plain(r policy.Rule) figures.Rule {
	return figures.Rule{Bucket: r.Algorithm == policy.TokenBucket, Limit: r.Limit, Burst: max(1, r.Burst), Per: r.Per}
}

// bucket is a token bucket, sliding a sliding window.
func bucket(name string, limit int64, per time.Duration, burst int64) policy.Rule {
	return policy.Rule{Name: name, Algorithm: policy.TokenBucket, Limit: limit, Per: per, Burst: burst}
}

func sliding(name string, limit int64, per time.Duration) policy.Rule {
	return policy.Rule{Name: name, Algorithm: policy.SlidingWindow, Limit: limit, Per: per}
}

// single is a backlog of n tasks under one rule.
func single(name string, n int, rule policy.Rule) scenario {
	return scenario{
		name: name, tasks: jobs(n, "p"), limits: map[string]policy.ScopeConfig{"p": {Rules: []policy.Rule{rule}}},
		binding: rule.Name, level: 1,
	}
}
