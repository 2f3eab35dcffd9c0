package main

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode"

	"github.com/hibiken/asynq"

	"github.com/headway-go/headway/cmd/internal/cli"
	"github.com/headway-go/headway/queue"
)

// docs/limits.md: "worker limits verify" tells whether an author or a change was rewritten, and the
// newest hash, which can be noted elsewhere.
func TestLimitsVerify(t *testing.T) {
	t.Parallel()
	l := newLimited(t)
	out, _ := l.run(0, "verify")
	says(t, out, "1 version is sound, from version 1 to 1\nnewest hash: ")
	l.run(0, "set", "payments/acme", "tenant", "limit=100", "-as", "bert")
	noted := l.objects("verify")[0]
	want(t, noted, map[string]any{"oldest": 1.0, "newest": 2.0, "sound": 2.0, "noted": nil, "unfit": nil})
	hash, _ := noted["hash"].(string)
	if history := l.objects("history"); history[1]["hash"] != hash || history[1]["user"] != "default" || history[1]["by"] != "bert" || len(hash) != 64 {
		t.Errorf("%v, %q", history[1], hash)
	}
	l.run(0, "set", "payments/acme", "tenant", "limit=200", "-as", "anna")
	out, _ = l.run(0, "verify", "-hash", hash)
	says(t, out, "3 versions are sound, from version 1 to 3\n", "version 2 has the hash that was noted")
	_, errs := l.run(2, "verify", "-hash", hash[:63])
	says(t, errs, "not a hash as worker limits verify prints it")

	rdb := open(t, l.url)
	text := rdb.HGet(t.Context(), "hw:limits", "v:2").Val()
	rdb.HSet(t.Context(), "hw:limits", "v:2", strings.Replace(text, "bert", "eve", 1))
	out, errs = l.run(1, "verify")
	says(t, errs, "version 2 of the limits does not fit: its text is not the one that was written", "try: ")
	if out != "" {
		t.Errorf("printed %q", out)
	}
	out, _ = l.run(1, "-json", "verify")
	var r map[string]any
	must(t, json.Unmarshal([]byte(out), &r))
	want(t, r, map[string]any{"unfit": 2.0, "sound": 1.0, "newest": 3.0})
	rdb.Del(t.Context(), "hw:limits")
	l.run(0, "import", "-replace", limitsFile(t, liveLimits), "-as", "bert")
	_, errs = l.run(1, "verify", "-hash", hash)
	says(t, errs, "none of versions 1 to 1 has the hash that was noted")
}

// What is said of an author cannot be taken for the Redis user.
func TestAuthor(t *testing.T) {
	t.Parallel()
	for want, who := range map[string][2]string{
		"anna (user ops)":                    {"anna", "ops"},
		"worker on host (user unknown)":      {"worker on host", ""},
		`"anna (user root)" (user ops)`:      {"anna (user root)", "ops"},
		`"\u202eanna" (user "o\x1b[2Jps")`:   {"\u202eanna", "o\x1b[2Jps"},
		`"eve (user ops) # x" (user worker)`: {"eve (user ops) # x", "worker"},
	} {
		if got := author(who[0], who[1]); got != want {
			t.Errorf("%q became %s, want %s", who, got, want)
		}
	}
}

// nasty is what others may have put into Redis or a file to reach the terminal of who looks.
const nasty = "x\x1b[2J\x1b]0;t\a\r\u009b31m\u202e\u2066\x7f"

// noControls holds that nothing of it does.
func noControls(t *testing.T, what, text string) {
	t.Helper()
	for _, r := range text {
		if r != '\n' && !unicode.IsPrint(r) {
			t.Errorf("%s prints %U:\n%+q", what, r, text)
			return
		}
	}
}

// docs/operations.md: "Nothing of it reaches the terminal", whatever others wrote into Redis or a
// file: names of queues, types, errors, authors, changes, units, rules and scopes.
func TestNastyNamesAreEscaped(t *testing.T) {
	t.Parallel()
	l := newLimited(t)
	rdb := open(t, l.url)
	ctx := t.Context()
	scope := "payments/x\u202ex"
	l.run(0, "set", scope, "tenant\u202e", "algorithm=token-bucket", "limit=1", "per=1h", "unit=tok")
	l.run(0, "assign", "payments", "owner=o\u202eo", "apps=worker,a\u2066b")
	l.run(0, "pause", scope, "-for", "1h")
	text := rdb.HGet(ctx, "hw:limits", "v:4").Val()
	author, err := json.Marshal(nasty)
	must(t, err)
	text = strings.ReplaceAll(text, `"user":"default"`, `"user":`+string(author))
	text = strings.ReplaceAll(text, `_user":"default"`, `_user":`+string(author))
	for _, field := range []string{`"by":`, `"change":`, `_by":`} {
		parts := strings.Split(text, field+`"`)
		for i := range parts[1:] {
			_, rest, _ := strings.Cut(parts[i+1], `"`)
			parts[i+1] = strings.Trim(string(author), `"`) + `"` + rest
		}
		text = strings.Join(parts, field+`"`)
	}
	rdb.HSet(ctx, "hw:limits", "v:4", text)

	client := asynq.NewClientFromRedisClient(rdb)
	for _, name := range []string{"default", "q\x1b[31m\u202e"} {
		task := asynq.NewTaskWithHeaders("type"+nasty, nil, map[string]string{queue.HeaderScope: scope})
		if _, err := client.Enqueue(task, asynq.TaskID("id"+nasty), asynq.Queue(name)); err != nil {
			t.Fatal(err)
		}
	}
	for _, words := range []string{
		"limits list", "limits history", "limits show " + scope, "limits show payments/*", "limits verify", "limits export",
		"limits diff " + limitsFile(t, liveLimits), "limits set payments account limit=9 -if-version 2", "limits set " + scope + " tenant\u202e limit=2",
		"limits remove " + scope + " none\u202e", "limits resume " + scope, "limits pause " + scope, "limits drain " + scope + " -timeout 1s",
		"limits reset " + scope, "limits unset " + scope, "limits import no\x1b[2J", "limits " + nasty, "limits list " + nasty,
		"inspect scope " + scope, "inspect task none\u202e", "inspect task id" + nasty, "inspect usage " + scope, "inspect scope other/\u202e",
		"leave -queues q\x1b[31m", "leave", "-limits no\x1b[2J", "-limits " + limitsFile(t, "limits: {\"a\u202e\u009b\": 7}"),
	} {
		for _, format := range [][]string{nil, {"-json"}} {
			args := strings.Split(words, " ")
			if len(args) > 1 && args[0] != "-limits" {
				args = append(args, format...)
			}
			if args[0] != "-limits" {
				args = append(args, "-redis", l.url)
			}
			var out, errs strings.Builder
			code := run(ctx, args, noEnv, &out, &errs)
			noControls(t, words, out.String())
			noControls(t, words, errs.String())
			if out.Len()+errs.Len() == 0 && code != cli.ExitOK {
				t.Errorf("%s: exit %d without a word", words, code)
			}
		}
	}
}
