package throttle

import (
	"math/rand/v2"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle/policy"
)

var hostileNames = []string{
	"a", "a/b", "a%2Fb", "a:b", "a%3Ab", "{a}", "}a{", "a}", "{", "}", "{}", "*", "?", "[a]", "a*", `\`, `\*`, "a b", " ", "%", "%%",
	"%25", "a%", "@", "a@b", ":held", "a:held", "held", "members", "ü", "u\u0308", "日本", "é", "a.b", "a-b", "a_b", "a~b", "A", "^a", "$",
	"'", `"`, "a\"b", "#", "&", "|", ";", "<", "=", "+", ",", "!", "(", "`", strings.Repeat("x", 128),
}

var plainKey = regexp.MustCompile(`^hw:\{[^{}*?\[\]\\^ :/@]+\}(/[^{}*?\[\]\\^ :/@]+)*:[^{}*?\[\]\\^ :/@]+(:held)?$`)

// "no name can collide with another or move a key to another cluster slot,
// whatever characters it contains" (traps T13, T64, T65, I15, I17)
func TestKeysNeverCollide(t *testing.T) {
	t.Parallel()
	owner, provider := map[string]string{}, map[string]string{}
	const k = keyspace("hw")
	check := func(path, rule string, algorithm policy.Algorithm) {
		t.Helper()
		scope, err := policy.ParseScope(path)
		if err != nil {
			return // such as "*", which no task may name
		}
		key := k.rule(policy.MatchedRule{Scope: scope, Rule: policy.Rule{Name: rule, Algorithm: algorithm}})
		kind := "state"
		if algorithm == policy.Concurrency {
			kind = "set" // keys of another type, so that a change of algorithm finds none of the other
		}
		who := strings.Join([]string{path, rule, kind}, "\x00")
		if other, taken := owner[key]; taken && other != who {
			t.Errorf("%q and %q share the key %q", other, who, key)
		}
		owner[key] = who
		if !plainKey.MatchString(key) {
			t.Errorf("%q: %q is not of the form of a key", who, key)
		}
		tag := tagOf(t, key)
		name := scope.Provider()
		if was, known := provider[name]; known && was != tag {
			t.Errorf("keys of provider %q have the hash tags %q and %q", name, was, tag)
		}
		provider[name] = tag
		if attempt := (&compiledScope{provider: k.provider(name)}).attempt(rule); tagOf(t, attempt) != tag || owner[attempt] != "" {
			t.Errorf("the attempt %q of %q is not of its provider's slot", attempt, name)
		}
	}
	for _, a := range hostileNames {
		for _, b := range hostileNames {
			check(a, b, policy.SlidingWindow)
			check(a, b, policy.Concurrency)
			check(a+"/"+b, "r", policy.TokenBucket)
			check(a+"/"+b, "r", policy.Concurrency)
			check("p/"+a+"/"+b, "held", policy.FixedWindow)
			check("p/"+a, b, policy.FixedWindow)
		}
	}
	random := rand.New(rand.NewPCG(1, 2))
	pick := func() string { return hostileNames[random.IntN(len(hostileNames))] }
	for range 20_000 {
		path := pick()
		for range random.IntN(4) {
			path += []string{"/", "", ":", "%"}[random.IntN(4)] + pick()
		}
		check(path, pick(), allAlgorithms[random.IntN(len(allAlgorithms))])
	}
	if tags := map[string]string{}; len(provider) > 0 {
		for name, tag := range provider {
			if other, taken := tags[tag]; taken {
				t.Errorf("providers %q and %q share the hash tag %q", name, other, tag)
			}
			tags[tag] = name
		}
	}
}

// "Different names have different escapes, and an escaped name holds no character that divides the parts of a key",
// also for those who keep something of a scope beside the limiter.
func TestKeysForOthers(t *testing.T) {
	t.Parallel()
	for _, name := range hostileNames {
		text := EscapeName(name)
		if got := UnescapeName(text); got != name || strings.ContainsAny(text, "{}/:@!*?[] ") {
			t.Errorf("%q is written as %q and read as %q", name, text, got)
		}
		s, err := policy.ParseScope("p/" + name)
		if err != nil {
			continue
		}
		key := ScopeKey("other", s)
		if rule := keyspace("other").rule(policy.MatchedRule{Scope: s, Rule: policy.Rule{Name: "r"}}); rule != key+":r" {
			t.Errorf("the keys of %q begin with %q, and a rule's is %q", s, key, rule)
		}
	}
}

// tagOf returns the part of a key that Redis Cluster hashes, which must be a true hash tag.
func tagOf(t *testing.T, key string) string {
	t.Helper()
	_, rest, open := strings.Cut(key, "{")
	tag, _, closed := strings.Cut(rest, "}")
	if !open || !closed || tag == "" {
		t.Errorf("%q has no hash tag", key)
	}
	return tag
}

// What a real cluster makes of them.
func TestProviderHasOneSlot(t *testing.T) {
	t.Parallel()
	rdb := redistest.Cluster(t)
	for _, name := range hostileNames {
		scope, err := policy.ParseScope(name)
		if err != nil {
			continue
		}
		p := compileScope("hw", scope, []policy.MatchedRule{
			{Scope: scope, Rule: runs10()},
			{Scope: parsedScope(t, name+"/"+hostileNames[2]), Rule: window10()},
		}, 0, time.Now())
		slots := map[int64]bool{}
		for _, key := range append(p.keys, p.attempt("id"), p.attempt(name)) {
			slot, err := rdb.ClusterKeySlot(t.Context(), key).Result()
			noError(t, err)
			slots[slot] = true
		}
		if len(slots) != 1 {
			t.Errorf("the keys of provider %q have %d slots", scope.Provider(), len(slots))
		}
	}
}

// "Limits are no part of a name: changing one keeps what has been spent." (T23)
func TestKeysNameNoLimit(t *testing.T) {
	t.Parallel()
	const k = keyspace("hw")
	scope, err := policy.ParseScope("p/x")
	noError(t, err)
	want := k.rule(policy.MatchedRule{Scope: scope, Rule: window10()})
	for _, r := range []policy.Rule{
		{Name: "r", Algorithm: policy.SlidingWindow, Limit: 99, Per: time.Hour}, {Name: "r", Algorithm: policy.TokenBucket, Limit: 1, Per: ms, Burst: 7},
		{Name: "r", Algorithm: policy.FixedWindow, Limit: 5, Per: sec, Margin: ms}, daily(5, "UTC"), daily(5, "Asia/Kathmandu"), resetAt("@monthly", "UTC"),
	} {
		if got := k.rule(policy.MatchedRule{Scope: scope, Rule: r, Pattern: "p/*"}); got != want {
			t.Errorf("%+v has the key %q, %+v has %q", r, got, window10(), want)
		}
	}
}
