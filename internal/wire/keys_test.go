package wire

import (
	"math/rand/v2"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/headway-go/headway/throttle/policy"
)

var hostileNames = []string{
	"a", "a%2Fb", "a:b", "a%3Ab", "{a}", "}a{", "a}", "{", "}", "{}", "*", "?", "[a]", "a*", `\`, `\*`, "a b", " ", "%", "%%",
	"%25", "a%", "@", "a@b", ":r", "a:r", "r", "!", "ü", "u\u0308", "日本", "é", "a.b", "a-b", "a_b", "a~b", "A", "^a", "$",
	"'", `"`, "#", "&", "|", ";", "<", "=", "+", ",", "(", "`", strings.Repeat("x", 128),
}

var plainKey = regexp.MustCompile(`^hw:\{[^{}*?\[\]\\^ :/@]+\}:r:(/[^{}*?\[\]\\^ :/@]+)*:[^{}*?\[\]\\^ :/@]+$`)

// "All keys of one provider share a hash tag, and names are escaped": no name can collide with another or move a key to another
// slot, whatever characters it has. "Rates, windows and limits are not part of a key's name."
func TestKeysNeverCollide(t *testing.T) {
	t.Parallel()
	owners, random := map[string]string{}, rand.New(rand.NewPCG(1, 2))
	pick := func() string { return hostileNames[random.IntN(len(hostileNames))] }
	for range 30_000 {
		path, rule := pick(), pick()
		for range random.IntN(4) {
			path += "/" + pick()
		}
		scope, err := policy.ParseScope(path)
		if err != nil {
			continue // such as "*", which no task may name
		}
		b := policy.MatchedRule{Scope: scope, Rule: policy.Rule{Name: rule, Limit: random.Int64N(9), Algorithm: policy.SlidingWindow}}
		prefix := Prefix("hw", scope.Provider())
		key, owner := StateKey(prefix, b), path+"\x00"+rule
		if other, taken := owners[key]; taken && other != owner {
			t.Errorf("%q and %q share the key %q", other, owner, key)
		}
		owners[key] = owner
		if !plainKey.MatchString(key) || !strings.HasPrefix(key, prefix) {
			t.Errorf("%q: %q is not of the form of a key", owner, key)
		}
		if got := ScopeOf(scope.Provider(), Path(path)); got != path {
			t.Errorf("%q is read as %q", path, got)
		}
	}
}

// A scope is compiled once for each policy.
func TestScopesCompileOnce(t *testing.T) {
	t.Parallel()
	attached := 0
	scopes := NewScopes(policy.PerSecond("p", 5), Compiler{Base: "hw"}, func(string) time.Time { return time.Unix(1, 0) },
		func(*Scope, *policy.Policy) any { attached++; return attached })
	for n, want := range []int{1, 1, 2} {
		s, err := scopes.Of("p/x")
		if err != nil || s.Attached != want || s.Prefix != "hw:{p}:" || s.Path != "/x" || s.Most != 5 || !s.Holds(1e6) || s.Leases() {
			t.Errorf("%d: %+v, %v", n, s, err)
		}
		if n == 1 {
			scopes.Set(policy.PerSecond("p", 5))
		}
	}
	if len(scopes.Earlier()) != 1 {
		t.Error("the policy before is forgotten")
	}
}
