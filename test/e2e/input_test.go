package e2e

import (
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/headway-go/headway/test/programs"
	"github.com/headway-go/headway/test/redistest"
)

const plain = "limits: {p: {rules: [{name: all, algorithm: sliding-window, limit: 40, per: 2s, margin: 500ms}]}}\n"

// Scopes with any characters arrive under their own limits, and as they were.
func TestHostileScopes(t *testing.T) {
	t.Parallel()
	s := newSite(t, `limits: {p: {scopes: {"*": {rules: [{name: "r:{*}", algorithm: sliding-window, limit: 2, per: 1h}]}}}}`+"\n")
	names := []string{"a", "a:b", "a%2Fb", "a b", "{", "}", "{a}", "**", "?", `\`, `"`, "'", "@", "#", "日本", "😀", "é", "e\u0301", "..", ".", "\u202e", "%", "&", "<x>"}
	s.enqueue(s.lines(3*len(names), func(i int) task { return task{Scope: "p/" + names[i/3]} }))
	w := s.worker()
	s.until(2 * len(names))
	redistest.WaitAsking(s.T, "the third of each to wait", bound, func() bool {
		info, err := s.inspector.GetQueueInfo("default")
		return err == nil && info.Retry+info.Scheduled == len(names)
	})
	rep := s.report()
	if rep.Exceeded() || len(rep.Duplicates)+len(rep.Unknown)+len(rep.Mismatched) > 0 || len(rep.Lost) != len(names) {
		t.Errorf("%q", rep.Violations())
	}
	w.Terminate()
	w.Ends(0)
}

// Both programs without -redis meet at the worker's embedded server, whose port only one worker can have.
func TestEmbedded(t *testing.T) {
	t.Parallel()
	const addr = "127.0.0.1:6390"
	if conn, err := net.Dial("tcp", addr); err == nil {
		_ = conn.Close()
		t.Skipf("something else listens at %s", addr)
	}
	s := newSite(t, plain)
	w := programs.Start(t, nil, "worker", "-limits", s.limits, "-allow-host", s.api.Addr(), "-listen", "127.0.0.1:0")
	w.Says("msg=ready")
	w.Says("nothing is kept on disk")
	if _, said := programs.Run(t, 1, nil, "worker", "-limits", s.limits); !strings.Contains(said, "the port is in use") {
		t.Errorf("a second worker says %s", said)
	}

	const n = 50
	lines := s.lines(n, func(int) task { return task{Scope: "p/x"} })
	programs.Run(t, 0, strings.NewReader(lines), "enqueue", "batch", "-") // checked against what the worker has published
	bad := strings.ReplaceAll(s.line(task{ID: "unknown", Scope: "p/x"}), "p/x", "q/x")
	s.tasks = s.tasks[:n]
	if out, _ := programs.Run(t, 1, strings.NewReader(bad), "enqueue", "batch", "-"); !strings.Contains(out, "q/x") {
		t.Errorf("%q", out)
	}
	programs.Run(t, 0, nil, "enqueue", "http", "-scope", "p/x", "-id", "one", "-header", "X-Task-Id: one", s.api.URL("p/x"))
	s.until(n + 1)
	get(t, "http://"+listening(t, w)+"/healthz", http.StatusOK)
	if page := get(t, "http://"+listening(t, w)+"/metrics", http.StatusOK); counted(t, page, `headway_runs_total\{outcome="ok",queue="default"\} (\d+)`) == 0 {
		t.Error("no run is counted")
	}
	if rep := s.report(); rep.Exceeded() || len(rep.Lost)+len(rep.Duplicates) > 0 {
		t.Errorf("%q", rep.Violations())
	}
	w.Terminate()
	w.Ends(0)
}
