package bench

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/headway-go/headway/test/bench/figures"
	"github.com/headway-go/headway/test/checker"
	"github.com/headway-go/headway/test/countapi"
	"github.com/headway-go/headway/throttle/limitsyaml"
	"github.com/headway-go/headway/throttle/policy"
)

// BenchmarkPool has three keys of one API work a backlog off together, and beside it the usual way: each task takes the next key, and a
// limiter in the handler puts it back if that has no room.
func BenchmarkPool(b *testing.B) {
	s := pool(20000)
	if !long() {
		s = pool(1400)
	}
	for _, c := range []contender{builtPrograms, byTurns} {
		c.into(b, s, (*outcome).poolRow)
	}
}

// poolKeys are the limits a second of the members.
var poolKeys = []struct {
	alias string
	limit int64
}{{"alice", 50}, {"bob", 100}, {"ci", 200}}

// pool is a backlog of tenants below a pool.
func pool(n int) scenario {
	node := policy.ScopeConfig{Scopes: map[string]policy.ScopeConfig{}}
	for _, k := range poolKeys {
		node.Pool.Members = append(node.Pool.Members, policy.Member{Name: k.alias})
		node.Scopes["@"+k.alias] = policy.ScopeConfig{Rules: []policy.Rule{sliding("key", k.limit, time.Second)}}
	}
	return scenario{
		name:  fmt.Sprintf("%d of 20 tenants, a pool of keys of 50/s, 100/s and 200/s, sliding windows, two workers", n),
		tasks: jobs(n, numbered("github/t%02d", 20)...), limits: map[string]policy.ScopeConfig{"github": node},
		binding: "key", level: 1, workers: 2, slots: 64,
	}
}

// poolRow figures the outcome by what the keys have together, and notes the most of each.
func (o *outcome) poolRow() figures.Row {
	var joint int64
	for _, k := range poolKeys {
		joint += k.limit
	}
	judged := policy.ScopeConfig{Rules: []policy.Rule{sliding("joint", joint, time.Second)}, Scopes: map[string]policy.ScopeConfig{}}
	for _, k := range poolKeys { // also of a contender whose rules are others
		judged.Scopes["@"+k.alias] = policy.ScopeConfig{Rules: []policy.Rule{sliding("key", k.limit, time.Second)}}
	}
	pad := o.kept.Per - o.rule.Per
	o.rule = plain(judged.Rules[0])
	o.kept = o.rule
	o.kept.Per += pad
	var err error
	o.policy, err = policy.New(policy.UnmatchedDeny, map[string]policy.ScopeConfig{"github": judged})
	must(o.b, err)
	o.binding = "joint"
	o.notes = append(o.notes, "most "+o.mostOfEach())
	return o.row()
}

// mostOfEach says how many starts of each key are in a second at most, with the calls' times on the way left out.
func (o *outcome) mostOfEach() string {
	input := checker.Input{Calls: o.startsAsCalls(), Epoch: o.began}
	if o.outside {
		input.Jitter = shortened
	}
	var each []string
	for _, r := range checker.Judge(o.b, string(limitsyaml.Format(o.policy)), input).Rows {
		if r.Rule == "key" {
			each = append(each, fmt.Sprintf("%s %d of %d", strings.TrimPrefix(r.Scope, "github/@"), r.Judged, r.Limit))
		}
	}
	slices.Sort(each)
	return strings.Join(each, ", ")
}

// keyFiles writes a file for each member of the scenario's pool, with the alias as its key, and returns their directory; "" without one.
func keyFiles(b *testing.B, s scenario) string {
	b.Helper()
	dir := ""
	for _, node := range s.limits {
		for _, m := range node.Pool.Members {
			if dir == "" {
				dir = b.TempDir()
			}
			must(b, os.WriteFile(filepath.Join(dir, m.Name), []byte(m.Name), 0o600))
		}
	}
	return dir
}

// memberMark stands in an id before the key with which the API was called.
const memberMark = "@"

// calledAs returns the task of a call: where it names a key, with the scope of that key.
func calledAs(c countapi.Call) job {
	id, alias, pooled := strings.Cut(c.ID, memberMark)
	if !pooled {
		return job{c.ID, c.Scope}
	}
	return job{id, memberScope(c.Scope, alias)}
}

func memberScope(scope, alias string) string {
	provider, _, _ := strings.Cut(scope, "/")
	return provider + "/@" + alias
}

// byTurns is the usual way with several keys.
var byTurns = func() contender {
	c := usual("asynq + redis_rate, burst 1, keys by turns", func(policy.Rule) int64 { return 1 })
	c.serve = func(st *stage) (func() error, error) {
		var turn atomic.Int64
		return byTheWikiAs(st, func(scope string) string {
			return memberScope(scope, poolKeys[turn.Add(1)%int64(len(poolKeys))].alias)
		})
	}
	return c
}()
