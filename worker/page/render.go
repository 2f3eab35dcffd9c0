package page

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"html/template"
	"io/fs"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/headway-go/headway/worker/control"
)

// templates are the templates of the screens by name, each with the shared parts.
type templates map[string]*template.Template

// view is the data of a template.
type view struct {
	Title  string
	Screen string // its name, for the navigation
	Who    Actor
	Login  bool   // the actor has logged in with a password, and can log out
	Live   string // the URL of the live part; empty for none
	Query  string // the text of the search
	Now    time.Time
	// Refresh is after how many seconds a browser without JavaScript reads the screen again, 0 for never.
	Refresh int
	Stale   *stale
	Data    any
}

// stale says that the data shown is old, and why.
type stale struct {
	At  time.Time
	Why string
}

// shared are the templates that every screen includes.
var shared = []string{"templates/base.html", "templates/parts.html"}

func (h *handler) parse() (templates, error) {
	all := templates{}
	files, err := fs.Glob(embedded, "templates/*.html")
	if err != nil {
		return nil, err
	}
	for _, file := range files {
		name := strings.TrimSuffix(strings.TrimPrefix(file, "templates/"), ".html")
		if name == "base" || name == "parts" {
			continue
		}
		if all[name], err = template.New(name).Funcs(h.functions()).ParseFS(embedded, append(shared, file)...); err != nil {
			return nil, err
		}
	}
	return all, nil
}

func (h *handler) functions() template.FuncMap {
	return template.FuncMap{
		"link":    h.link,
		"asset":   func(name string) string { return h.cfg.Prefix + "/assets/" + name + "?v=" + assetVersion() },
		"num":     number,
		"time":    momentOf,
		"plural":  plural,
		"columns": columns,
		"names":   crumbs,
		"reason":  reasonWords,
		"join":    strings.Join,
		"clock":   func(at time.Time) string { return at.UTC().Format("15:04") },
	}
}

// link returns a path of the page with a query: link "/scope" "scope" "payments/acme". It leaves out
// pairs with an empty value.
func (h *handler) link(path string, kv ...any) string {
	query := url.Values{}
	for i := 0; i+1 < len(kv); i += 2 {
		if value := fmt.Sprint(kv[i+1]); value != "" {
			query.Add(fmt.Sprint(kv[i]), value)
		}
	}
	if len(query) == 0 {
		return h.cfg.Prefix + path
	}
	return h.cfg.Prefix + path + "?" + query.Encode()
}

// column is a column of a table.
type column struct {
	Name   string
	Number bool
}

// columns returns columns by their names. Those of numbers begin with "#".
func columns(names ...string) (list []column) {
	for _, name := range names {
		text, number := strings.CutPrefix(name, "#")
		list = append(list, column{text, number})
	}
	return list
}

// assetVersion is a hash of all assets.
var assetVersion = sync.OnceValue(func() string {
	sum := sha256.New()
	_ = fs.WalkDir(embedded, "assets", func(path string, d fs.DirEntry, err error) error { // embedded files can be read
		if err == nil && !d.IsDir() {
			data, _ := embedded.ReadFile(path)
			_, _ = sum.Write(data)
		}
		return err
	})
	return hex.EncodeToString(sum.Sum(nil))[:12]
})

// number returns a number with separators between thousands: 1,204,331.
func number(n any) string {
	text, sign := fmt.Sprint(n), ""
	if digits, negative := strings.CutPrefix(text, "-"); negative {
		text, sign = digits, "−"
	}
	for at := len(text) - 3; at > 0; at -= 3 {
		text = text[:at] + "," + text[at:]
	}
	return sign + text
}

// plural returns a number with its noun.
func plural(n any, noun, plural string) string {
	if text := number(n); text == "1" {
		return "1 " + noun
	}
	return number(n) + " " + plural
}

// moment is a time to show. A script turns it into local time, and counts it down.
type moment struct {
	Machine, Text string
	Zero          bool
}

func momentOf(at any) moment {
	var t time.Time
	switch at := at.(type) {
	case time.Time:
		t = at
	case control.Time:
		t = at.Time
	}
	if t.IsZero() {
		return moment{Zero: true}
	}
	t = t.UTC()
	return moment{Machine: t.Format("2006-01-02T15:04:05.000Z"), Text: clockText(t)}
}

// crumb is a level of a scope, with the path to it.
type crumb struct {
	Name, Scope string
	Last        bool
}

func crumbs(scope string) (list []crumb) {
	names := strings.Split(scope, "/")
	for i, name := range names {
		list = append(list, crumb{name, strings.Join(names[:i+1], "/"), i == len(names)-1})
	}
	return list
}

// clockText returns a time as people read it.
func clockText(t time.Time) string { return t.UTC().Format("2 Jan 15:04:05") + " UTC" }

// reasonWords returns what a task waits for, in words.
func reasonWords(why control.Reason, rule, scope string) string {
	of := rule
	if scope != "" {
		of = rule + " of " + scope
	}
	switch why {
	case control.ReasonRule:
		return of
	case control.ReasonRun:
		return "a run that ends, under " + of
	case control.ReasonSuspended:
		return of + ", which is suspended"
	case control.ReasonPaused:
		return "the pause of " + scope
	case control.ReasonUpstream:
		return "its API, which asked for a pause"
	case control.ReasonHours:
		return "a time when other rules apply"
	case control.ReasonDelay:
		return "the end of its delay"
	case control.ReasonCost:
		return "a higher limit: it costs more than a rule admits"
	case control.ReasonQueuePaused:
		return "its queue, which asynq has paused"
	case control.ReasonUnmatched:
		return "a rule: none matches its scope"
	}
	return ""
}

// render writes a screen.
func (h *handler) render(w http.ResponseWriter, r *http.Request, status int, name string, v view) {
	v.Screen, v.Now = name, h.now()
	v.Login = h.cfg.Users != nil && h.sessions.of(r, h.now()) != nil
	var b bytes.Buffer
	if err := h.templates[name].ExecuteTemplate(&b, "base", v); err != nil {
		h.log.ErrorContext(r.Context(), "page: a screen cannot be shown", "screen", name, "error", err)
		http.Error(w, "this screen cannot be shown; the log says why", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write(b.Bytes()) // the reader may have closed the connection
}

// failure is a screen with an error, and what to do about it.
type failure struct {
	What  []string
	Try   string
	Retry bool // the screen reads itself again
	Found []searchResult
}

// againAfter is after how many seconds a browser reads a screen again that has no answer of Redis, also without scripts.
const againAfter = 5

// fail shows an error.
func (h *handler) fail(w http.ResponseWriter, r *http.Request, actor Actor, status int, err error) {
	f := failure{What: strings.Split(control.Plain(err), "\n")}
	title := "This did not work"
	switch status {
	case http.StatusForbidden:
		title = "Not allowed"
	case http.StatusNotFound:
		title, f.Found = "Not found", h.suggestions(r, actor)
	case http.StatusServiceUnavailable:
		title, f.Try = "Redis does not answer", "Go back and send it again when Redis answers. If it lasts, look at Redis, and at the log of this process."
		if f.Retry = r.Method == http.MethodGet; f.Retry { // what a form has sent would be lost
			f.Try = "The page tries again by itself. If it lasts, look at Redis, and at the log of this process."
			w.Header().Set("Refresh", strconv.Itoa(againAfter))
		}
	}
	h.render(w, r, status, "error", view{Title: title, Who: actor, Data: f})
}

// failed shows an error under the status that fits it.
func (h *handler) failed(w http.ResponseWriter, r *http.Request, actor Actor, err error) {
	h.fail(w, r, actor, statusOf(err), err)
}

// statusError is an error with the status of its answer.
type statusError struct {
	status int
	text   string
}

func (e *statusError) Error() string { return e.text }

func notFound(text string) error   { return &statusError{http.StatusNotFound, text} }
func badRequest(text string) error { return &statusError{http.StatusBadRequest, text} }
func conflict(text string) error   { return &statusError{http.StatusConflict, text} }

func statusOf(err error) int {
	if e, is := errors.AsType[*statusError](err); is {
		return e.status
	}
	switch {
	case errors.As(err, new(*control.ForbiddenError)):
		return http.StatusForbidden
	case errors.As(err, new(*control.NoTaskError)):
		return http.StatusNotFound
	case isRefusal(err):
		return http.StatusUnprocessableEntity
	}
	return http.StatusServiceUnavailable
}
