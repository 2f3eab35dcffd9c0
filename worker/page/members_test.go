package page

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/headway-go/headway/throttle/upstream"
)

// The screen of a scope below a pool, and that of its level, have each member's limits and what holds it. A member's own screen has the
// actions of a scope.
func TestMembersOnThePage(t *testing.T) {
	t.Parallel()
	s := newSiteUnder(t, testLimits+`  github:
    pool: {members: [alice, bob, ci], choose: drain}
    scopes:
      "@*": {rules: [{name: hour, algorithm: fixed-window, limit: 2, per: 30d}]}
      "@ci": {paused: true}
`, nil)
	s.use("github/acme")
	const ends = `href="/change?scope=github%2F%40bob&amp;verb=close">End it…</a>`
	_, err := s.limiter.Report(t.Context(), "github/@bob", upstream.Hint{Limited: true, Status: 429, Retry: time.Hour, RetryKnown: true})
	must(t, err)
	s.enqueue("github/acme", "a", 1)
	for _, path := range []string{"/scope?scope=github/acme", "/scope?scope=github"} {
		s.sees(http.StatusOK, path, "Members of the pool at github", `href="/scope?scope=github%2F%40alice">alice</a>`,
			`hour of github/@alice: 2 of 2 used`, `<span class="chip plain">ready</span>`, `<span class="chip api">API pause</span> until <time`, `<span class="chip paused">paused</span></td>`)
	}
	s.sees(http.StatusOK, "/scope?scope=github/acme", "waits for a member of the pool at github")
	lacks(t, s.sees(http.StatusOK, "/scope?scope=github/@alice", "Pause…", "verb=assign", "of this scope", "2 of 2 used"), "Members of the pool")
	lacks(t, s.sees(http.StatusOK, "/scope?scope=github/@bob", "The API asked not to be called", ends), "Close the breaker…")
	s.makes(form("verb", "close", "scope", "github/@bob"))
	lacks(t, s.sees(http.StatusOK, "/scope?scope=github/@bob", "Pause…"), ends)
	s.makes(form("verb", "reset", "scope", "github/@alice"))
	s.sees(http.StatusOK, "/scope?scope=github/acme", `hour of github/@alice: 0 of 2 used`)
	s.makes(form("verb", "resume", "scope", "github/@ci"))
	s.makes(form("verb", "pause", "scope", "github/@alice", "for", "1h"))
	lacks(t, s.sees(http.StatusOK, "/scope?scope=github/acme", `<span class="chip paused">paused</span> until <time`), `<span class="chip paused">paused</span></td>`)
	s.sees(http.StatusOK, "/scope?scope=search")
}

// The screen of a pool of 100 members costs a few commands more than another's.
func TestMembersCost(t *testing.T) {
	t.Parallel()
	var names []string
	for i := range 100 {
		names = append(names, fmt.Sprint("m", i))
	}
	s := newSiteUnder(t, testLimits+"  github: {pool: {members: ["+strings.Join(names, ", ")+`]}, scopes: {"*": {rules: [{name: r, algorithm: concurrency, limit: 9}]}, "@*": {rules: [{name: c, algorithm: concurrency, limit: 2}]}}}`+"\n", nil)
	h, sent := pageOfSite(t, s), countOn(s.rdb)
	reads := func(name string, last any) (state *scopeState, commands int64) {
		before := sent.Load()
		got, err := h.loadScope(t.Context(), url.Values{"scope": {name}}, last)
		must(t, err)
		return got.(*scopeState), sent.Load() - before
	}
	s.enqueue("github/acme", "a", 1)
	pooled, _ := reads("github/acme", nil)
	plain, _ := reads("github/@m1", nil)
	again, many := reads("github/acme", pooled) // without the details
	_, few := reads("github/@m1", plain)
	if len(again.members) != 100 || many > few+7 {
		t.Errorf("with %d members the screen costs %d commands, that of one %d", len(again.members), many, few)
	}
}
