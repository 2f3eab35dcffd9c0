package outbound

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hibiken/asynq"

	"github.com/headway-go/headway/test/programs"
)

// keys is a directory of secrets of members, beside a file that is none's.
func keys(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "keys")
	must(t, os.MkdirAll(filepath.Join(dir, "team"), 0o700))
	for name, text := range map[string]string{
		"alice": "hush-alice\n", "team/key1": "hush-team-key", "empty": "\n", "lines": "hush\r\nX-More: hush", "../outside": "hush-outside",
	} {
		must(t, os.WriteFile(filepath.Join(dir, filepath.FromSlash(name)), []byte(text), 0o600))
	}
	must(t, os.Symlink("alice", filepath.Join(dir, "linked")))
	must(t, os.Symlink(filepath.Join("..", "outside"), filepath.Join(dir, "out")))
	must(t, os.Symlink("..", filepath.Join(dir, "up")))
	return dir
}

// A header gets the secret of the member that the task was granted, read for each request. Neither errors nor the log show it, even where
// the API repeats it; the task's payload never holds it.
func TestSecretOfTheMember(t *testing.T) {
	t.Setenv("HEADWAY_TEST_bob", "hush-bob")
	dir := keys(t)
	var got string
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if got = r.Header.Get("Authorization"); r.URL.Path == "/echo" {
			w.WriteHeader(http.StatusUnauthorized)
			_, _ = io.WriteString(w, "bad credentials: "+got)
		}
	})
	at := s.Listener.Addr().String()
	member := ""
	var logs programs.Output
	cfg := Config{Member: func(context.Context) string { return member }, Logger: slog.New(slog.NewTextHandler(&logs, &slog.HandlerOptions{Level: slog.LevelDebug}))}
	for _, row := range []struct{ entry, member, header, want string }{
		{"file:" + dir + "/{member}", "alice", "Bearer {{secret .member}}", "Bearer hush-alice"},
		{"file:" + dir + "/{member}", "team/key1", "Bearer {{ secret .member }}", "Bearer hush-team-key"},
		{"file:" + dir + "/{member}", "linked", "{{secret .member}}:{{secret .member}}", "hush-alice:hush-alice"}, // as Kubernetes mounts secrets
		{"env:HEADWAY_TEST_{member}", "bob", "token {{secret .member}}", "token hush-bob"},
		{"env:HEADWAY_TEST_{member}", "bob", "{secret .member}} ${env:HEADWAY_TEST_{member}}", "{secret .member}} ${env:HEADWAY_TEST_{member}}"},
	} {
		cfg.Secrets = []string{row.entry + "@" + at}
		h := handler(t, cfg, seams{})
		member = row.member
		p := payload{URL: s.URL, Headers: map[string]string{"Authorization": row.header}}
		if err := run(t, h, p); err != nil || got != row.want {
			t.Errorf("%s, %s: %q, want %q: %v", row.member, row.header, got, row.want, err)
		}
		p.URL += "/echo"
		err := run(t, h, p)
		wantPermanent(t, err, true, "answered 401", "bad credentials: ")
		wantNoSecret(t, row.member, err, logs.String())
	}
	must(t, os.WriteFile(filepath.Join(dir, "alice"), []byte("hush-anew"), 0o600))
	cfg.Secrets, member = []string{"file:" + dir + "/{member}@" + at}, "alice"
	must(t, run(t, handler(t, cfg, seams{}), payload{URL: s.URL, Headers: map[string]string{"Authorization": "{{secret .member}}"}}))
	if got != "hush-anew" {
		t.Errorf("sent %q, not what the file has now", got)
	}
}

// A misspelt template is not sent as it stands. What a secret has is no template.
func TestTemplates(t *testing.T) {
	t.Setenv("HEADWAY_TEST_odd", "{{odd}}")
	h := handler(t, Config{Secrets: []string{"env:HEADWAY_TEST_{member}@api.example.com"}, Member: func(context.Context) string { return "odd" }}, seams{})
	for _, header := range []string{"{{.member}}", "{{secret .other}}", "{{secret .member}", "x {{secret .member}}{{"} {
		err := run(t, h, payload{URL: "https://api.example.com/", Headers: map[string]string{"X-Key": header}})
		wantPermanent(t, err, true, `headers["X-Key"]: has a "{{" that begins no template; write {{secret .member}} for the key of the pool's member`)
	}
	p := payload{URL: "https://api.example.com/", Headers: map[string]string{"X-Key": "{{secret .member}}"}}
	if _, err := h.secrets.resolve(&p, "odd"); err != nil || p.Headers["X-Key"] != "{{odd}}" {
		t.Errorf("%q, %v", p.Headers, err)
	}
}

// Without the secret of its member nothing is sent, and the error says what to do. What a retry, with another member or with the file
// in place, may cure is retried. No alias gets what is outside of its directory, or another member's.
func TestMembersWithoutSecrets(t *testing.T) {
	t.Setenv("HEADWAY_TEST_", "hush-all")
	dir := keys(t)
	const there, header = "https://api.example.com/", "Bearer {{secret .member}}"
	file := "file:" + dir + "/{member}@api.example.com"
	for name, row := range map[string]struct {
		entry, url, member, want string
		good                     bool // the task fails for good
	}{
		"no member":         {file, there, "", `headers["Authorization"]: names the secret of a pool's member, and the task was granted none; give it a scope below a pool`, true},
		"no entry":          {"env:A@api.example.com", there, "alice", "which this worker does not give to that host; start it with -secret file:DIR/{member}@HOST", true},
		"another host":      {file, "https://evil.example.com/", "alice", "which this worker does not give to that host", true},
		"userinfo of it":    {file, "https://api.example.com@evil.example.com/", "alice", "which this worker does not give to that host", true},
		"in the clear":      {file, "http://api.example.com/", "alice", "a secret is sent by https alone where -secret names no port", true},
		"several lines":     {file, there, "lines", `headers["Authorization"]`, true},
		"no file":           {file, there, "bob", `/keys/bob cannot be read: openat bob: no such file or directory; put the secret of the pool's member "bob" there, or pause the member`, false},
		"an empty file":     {file, there, "empty", `/keys/empty is empty; put the secret of the pool's member "empty" there`, false},
		"no directory":      {"file:/does/not/exist/{member}@api.example.com", there, "alice", "no such file or directory; put the secret", false},
		"a directory":       {file, there, "team", "is a directory", false},
		"the directory":     {file, there, ".", "is a directory", false},
		"above":             {file, there, "../outside", "the alias is no name of a file", false},
		"far above":         {file, there, "../../../../../../../etc/passwd", "the alias is no name of a file", false},
		"another's":         {file, there, "team/../alice", "the alias is no name of a file", false},
		"a link out":        {file, there, "out", "path escapes from parent", false},
		"a link up":         {file, there, "up/outside", "path escapes from parent", false},
		"no variable":       {"env:HEADWAY_TEST_{member}@api.example.com", there, "x", `the worker's environment has no HEADWAY_TEST_x; put the secret of the pool's member "x" there`, false},
		"no such variables": {"env:HEADWAY_TEST_{member}@api.example.com", there, "team/key1", `no variable's name can end in "team/key1"; give the worker the secrets of members as -secret file:DIR/{member}@HOST`, false},
	} {
		h := handler(t, Config{Secrets: []string{row.entry}, Member: func(context.Context) string { return row.member }}, seams{})
		p := payload{URL: row.url, Headers: map[string]string{"Authorization": header}}
		err := run(t, h, p)
		if bad := (*PayloadError)(nil); err == nil || !strings.Contains(err.Error(), row.want) || errors.As(err, &bad) != row.good || errors.Is(err, asynq.SkipRetry) != row.good {
			t.Errorf("%s: %v\nwant %s", name, err, row.want)
		}
		wantNoSecret(t, name, err, "")
	}
}

// One entry has the secrets of members for a host. Its alias is the whole name of a file, or the end of that of a variable.
func TestEntriesOfMembers(t *testing.T) {
	t.Parallel()
	for entries, want := range map[string]string{
		"env:{member}@h":                            "write env:PREFIX_{member}@HOST",
		"file:{member}@h":                           "write file:DIR/{member}@HOST",
		"file:/keys/key-{member}@h":                 "write file:DIR/{member}@HOST",
		"file:/{member}/key@h":                      "names no secret",
		"env:A_{member}_{member}@h":                 "names no secret",
		"other:{member}@h":                          "names no secret",
		"file:/a/{member}@h env:B_{member}@h":       "have their secrets for that host in file:/a/{member}; keep one of the two",
		"file:/a/{member}@h:1 file:/b/{member}@H.":  "keep one of the two",
		"file:/a/{member}@h file:/b/{member}@h:1":   "keep one of the two",
		"file:/a/{member}@h:1 file:/b/{member}@h:2": "",
		"file:/a/{member}@h file:/a/{member}@h:1":   "",
		"file:/a/{member}@h file:/b/{member}@g":     "",
		"file:/a/{member}@h env:B@h file:/a/c@h":    "",
	} {
		_, err := New(Config{Secrets: strings.Fields(entries)})
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", entries, err, want)
		}
	}
}
