package policystore

import (
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle/limitsyaml"
)

// storied is a store with a change of every kind.
func storied(t *testing.T) (*Store, *redis.Client) {
	t.Helper()
	s, rdb := withFile(t)
	ctx := t.Context()
	must(t, set(s, anna, "payments", "account", "limit=7"), set(s, Edit{By: "bert", For: time.Hour}, "payments/acme", "tenant", "limit=500"))
	_, err := s.Pause(ctx, Edit{By: "bert", For: time.Hour}, "payments")
	must(t, err)
	_, err = s.Resume(ctx, anna, "payments")
	must(t, err)
	_, err = s.Reassign(ctx, anna, "payments", Assigned{Owner: new("payments-team"), Apps: []string{"billing"}, MaxPriority: new(0)})
	must(t, err)
	_, err = s.Remove(ctx, anna, "payments", "account")
	must(t, err)
	_, err = s.Import(ctx, bert, policyOf(t, "limits: {p: {rules: [{name: r, algorithm: concurrency, limit: 1}]}}"), "other.yaml", true)
	must(t, err)
	_, err = s.Rollback(ctx, anna, 3)
	must(t, err)
	_, err = s.Unset(ctx, anna, "", "")
	must(t, err)
	_, _, err = s.PublishFile(ctx, "worker two", policyOf(t, strings.Replace(file, "limit: 20,", "limit: 30,", 1)), nil)
	must(t, err)
	return s, rdb
}

// docs/limits.md: "Each version names the hash of the one before", whatever made it.
func TestVerifySound(t *testing.T) {
	t.Parallel()
	s, _ := storied(t)
	c, err := s.Verify(t.Context(), "")
	must(t, err)
	history, err := s.History(t.Context())
	must(t, err)
	if n := len(history); c.Oldest != 1 || c.Newest != 11 || c.Sound != 11 || n != 11 || c.Hash != history[n-1].Hash || len(c.Hash) != 64 {
		t.Errorf("%+v of %d", c, n)
	}
	for i, v := range history[1:] {
		if v.Prev != history[i].Hash || v.Prev == "" {
			t.Errorf("version %d names %q, and the one before is %q", v.Number, v.Prev, history[i].Hash)
		}
	}
	c, err = s.Verify(t.Context(), strings.ToUpper(history[4].Hash))
	if err != nil || c.Noted != 5 {
		t.Errorf("%+v, %v", c, err)
	}
	// What Current says of the newest is what was written.
	if v, err := s.Current(t.Context()); err != nil || v.Hash != c.Hash {
		t.Errorf("%+v, %v", v, err)
	}
	none, _ := newStore(t)
	if _, err := none.Verify(t.Context(), ""); !errors.Is(err, ErrNone) {
		t.Error(err)
	}
}

// docs/limits.md: "An author, a time or a change that was rewritten in Redis is noticed."
func TestVerifyNotices(t *testing.T) {
	t.Parallel()
	s, rdb := storied(t)
	stood := rdb.HGetAll(t.Context(), s.key).Val()
	rewrite := func(field, from, to string) func(map[string]string) {
		return func(all map[string]string) {
			if !strings.Contains(all[field], from) {
				t.Errorf("%s is %s", field, all[field])
			}
			all[field] = strings.Replace(all[field], from, to, 1)
		}
	}
	sum := sumOf(limitsyaml.Format(policyOf(t, file)))
	for name, c := range map[string]struct {
		change func(all map[string]string)
		want   int64
	}{
		"an author":         {rewrite("v:2", `"by":"anna"`, `"by":"eve"`), 2},
		"the first author":  {rewrite("v:1", `"by":"worker one"`, `"by":"eve"`), 1},
		"the newest author": {rewrite("v:11", `"by":"worker two"`, `"by":"eve"`), 11},
		"a user":            {rewrite("v:4", `"user":"default"`, `"user":"eve"`), 4},
		"a change":          {rewrite("v:2", "limit=7", "limit=8"), 2},
		"a rule":            {rewrite("v:3", "limit: 500", "limit: 5"), 3},
		"a cap":             {rewrite("v:6", `"max_priority":0`, `"max_priority":9`), 6},
		"a time":            {rewrite("v:5", `"at":"2`, `"at":"3`), 5},
		"a space":           {rewrite("v:6", "{", "{ "), 6},
		"what it names": {func(all map[string]string) {
			all["v:6"] = strings.Replace(all["v:6"], sumOf([]byte(all["v:5"])), sumOf(nil), 1)
		}, 5},
		"no text any more":         {func(all map[string]string) { all["v:6"] = "x" }, 6},
		"the text of a file":       {rewrite(sourceField+sum, "limit: 20,", "limit: 21,"), 1},
		"no file":                  {func(all map[string]string) { delete(all, sourceField+sum) }, 1},
		"one taken out":            {func(all map[string]string) { delete(all, "v:4") }, 4},
		"the newest taken out":     {func(all map[string]string) { delete(all, "v:11") }, 11},
		"two exchanged":            {func(all map[string]string) { all["v:4"], all["v:5"] = all["v:5"], all["v:4"] }, 4},
		"one more":                 {func(all map[string]string) { all["v:12"] = all["v:11"] }, 12},
		"one in disguise":          {func(all map[string]string) { all["v:+4"] = all["v:4"] }, 11},
		"an older one in force":    {func(all map[string]string) { all[currentField] = markOf(10, all["v:10"]) }, 11},
		"what is in force damaged": {func(all map[string]string) { all[currentField] = "x" }, 11},
		"without what is in force": {func(all map[string]string) { delete(all, currentField) }, 11},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, rdb := newStore(t)
			all := maps.Clone(stood)
			c.change(all)
			rdb.HSet(t.Context(), s.key, all)
			_, err := s.Verify(t.Context(), "")
			var fault *ChainError
			if !errors.As(err, &fault) || fault.Version != c.want || !strings.Contains(err.Error(), fmt.Sprintf("version %d of the limits does not fit: ", c.want)) {
				t.Errorf("%v; want version %d", err, c.want)
			}
		})
	}
}

// A rewritten version is not covered up by the next change.
func TestVerifyNoticesLater(t *testing.T) {
	t.Parallel()
	s, rdb := withFile(t)
	must(t, set(s, anna, "payments", "account", "limit=7"))
	text := rdb.HGet(t.Context(), s.key, "v:2").Val()
	rdb.HSet(t.Context(), s.key, "v:2", strings.Replace(text, "anna", "eve", 1))
	must(t, set(s, bert, "payments", "account", "limit=8"))
	var fault *ChainError
	if _, err := s.Verify(t.Context(), ""); !errors.As(err, &fault) || fault.Version != 2 {
		t.Errorf("%v", err)
	}
}

// docs/limits.md: "Who writes the key can write a whole new chain": only a hash that was noted
// elsewhere tells.
func TestVerifyNoted(t *testing.T) {
	t.Parallel()
	write := func(s *Store, by string) string {
		must(t, set(s, Edit{By: by}, "payments", "account", "algorithm=concurrency", "limit=7"), set(s, bert, "payments", "account", "limit=8"))
		c, err := s.Verify(t.Context(), "")
		must(t, err)
		return c.Hash
	}
	s, rdb := newStore(t)
	noted := write(s, "anna")
	rdb.Del(t.Context(), s.key)
	write(s, "eve")
	_, err := s.Verify(t.Context(), noted)
	if err == nil || !strings.Contains(err.Error(), "none of versions 1 to 2 has the hash that was noted") {
		t.Errorf("%v", err)
	}
}

// "The oldest version that is kept is where the chain begins."
func TestVerifyTrimmed(t *testing.T) {
	t.Parallel()
	s, _ := withFile(t)
	for i := range Kept + 5 {
		must(t, set(s, anna, "payments", "account", fmt.Sprintf("limit=%d", i)))
	}
	c, err := s.Verify(t.Context(), "")
	if err != nil || c.Sound != Kept || c.Oldest != 7 || c.Newest != Kept+6 {
		t.Errorf("%+v, %v", c, err)
	}
}

// docs/limits.md: "-as is a label", and the Redis user stands beside it in all that a change writes.
func TestUserIsRecorded(t *testing.T) {
	t.Parallel()
	server := redistest.NewServer(t)
	options := func(commands ...string) (*Store, string) {
		rdb := server.User(t, []string{"hw:limits"}, commands...)
		return New(rdb, Config{}), rdb.Options().Username
	}
	s, user := options()
	_, _, err := s.PublishFile(t.Context(), "worker one", policyOf(t, file), nil)
	must(t, err, set(s, Edit{By: "default"}, "payments/acme", "tenant", "limit=100"), paused(s, anna, "payments"))
	other, otherUser := options()
	must(t, set(other, bert, "payments/acme", "tenant", "limit=200"))
	_, err = other.Assign(t.Context(), bert, "payments", new("team"), nil)
	must(t, err)
	v, err := s.Current(t.Context())
	must(t, err)
	if v.User != otherUser || v.File.User != user || v.Rules[0].CreatedUser != user || v.Rules[0].UpdatedUser != otherUser ||
		v.Scopes[0].UpdatedUser != otherUser || v.Pauses[0].UpdatedUser != user {
		t.Errorf("%+v", v)
	}
	silent, _ := options("+@all", "-acl")
	must(t, set(silent, anna, "payments/acme", "tenant", "limit=300"))
	if v, err = silent.Current(t.Context()); err != nil || v.User != "" || v.By != "anna" {
		t.Errorf("%+v, %v", v, err)
	}
	// One who may only read is told so, and changes nothing.
	for name, rules := range map[string][]string{"a key to read": {"@all"}, "no commands": {"hget", "hgetall", "time"}} {
		rdb := server.User(t, nil, append(rules, "%R~hw:limits*")...)
		if err := set(New(rdb, Config{}), anna, "payments", "account", "limit=1"); !errors.Is(err, ErrNotPermitted) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if now, err := s.Current(t.Context()); err != nil || now.Number != v.Number {
		t.Errorf("%+v, %v", now, err)
	}
}
