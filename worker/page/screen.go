package page

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/headway-go/headway/worker/control"
)

// screen is a page that shows one topic.
type screen struct {
	name  string // of its template
	needs needs
	// params are the query fields that say what is read. With own, each actor has a topic of its own.
	params []string
	own    bool
	every  time.Duration // how often it is read at most, as that of a topic
	load   func(ctx context.Context, of url.Values, last any) (any, error)
	// view turns the data of a topic into the data of the template, and returns the title.
	view func(r *http.Request, actor Actor, data any) (any, string, error)
	// live says that the screen is updated while it is open.
	live bool
}

// screens are the screens that change nothing, by their paths.
func (h *handler) screens() map[string]screen {
	return map[string]screen{
		"/":         {name: "overview", needs: seeRows, load: h.loadOverview, view: h.overviewView, live: true},
		"/scope":    {name: "scope", needs: seeScope, params: []string{"scope"}, load: h.loadScope, view: h.scopeView, live: true},
		"/waiters":  {name: "waiters", needs: seeScope, params: []string{"scope", "page"}, load: h.loadWaiters, view: h.waitersView, live: true},
		"/drain":    {name: "drain", needs: seeScope, params: []string{"scope"}, load: h.loadDrain, view: h.drainView, live: true},
		"/task":     {name: "task", needs: seeTask, params: []string{"id", "queue"}, load: h.loadTask, view: h.taskView, live: true},
		"/history":  {name: "history", needs: seeRows, load: h.loadHistory, view: h.historyView},
		"/progress": {name: "progress", needs: seeRows, own: true, load: h.loadJob, view: h.progressView, live: true},
		"/failures": {name: "failures", needs: seeRows, every: listsEvery, load: h.loadFailures, view: h.failuresView, live: true},
		"/workers":  {name: "workers", needs: seeRows, every: listsEvery, load: h.loadWorkers, view: h.workersView, live: true},
	}
}

func (s screen) topic(r *http.Request, actor Actor) topic {
	of := url.Values{}
	for _, name := range s.params {
		of.Set(name, r.FormValue(name))
	}
	if s.own {
		of.Set("actor", actor.Name)
	}
	load := func(ctx context.Context, last any) (any, error) { return s.load(ctx, of, last) }
	return topic{key: s.name + "?" + of.Encode(), every: s.every, load: load}
}

func (h *handler) show(w http.ResponseWriter, r *http.Request, actor Actor, s screen) error {
	st := h.hub.get(r.Context(), s.topic(r, actor))
	if st.data == nil {
		return cmp.Or(st.err, r.Context().Err())
	}
	v, err := h.viewOf(r, actor, s, st)
	if err != nil {
		return err
	}
	if s.live {
		v.Live = h.link("/live", "at", r.URL.RequestURI())
	}
	switch {
	case v.Stale == nil:
	case s.live: // with JavaScript its stream goes on
		v.Refresh = againAfter
	default:
		w.Header().Set("Refresh", strconv.Itoa(againAfter))
	}
	return h.render(w, r, http.StatusOK, s.name, v)
}

func (h *handler) viewOf(r *http.Request, actor Actor, s screen, st state) (view, error) {
	data, title, err := s.view(r, actor, st.data)
	v := view{Title: title, Screen: s.name, Actor: actor, Now: h.now(), Data: data}
	if p, is := data.(progress); is && p.Running {
		v.Refresh = 2
	}
	if st.err != nil {
		v.Stale = &stale{At: st.at, Why: control.Plain(st.err)}
	}
	return v, err
}

const (
	// heartbeat is how often an event is sent while nothing changes, so that no proxy closes the stream.
	heartbeat = 15 * time.Second
	// streamLongest is how long a stream lasts before the browser opens another, which a proxy can check again.
	streamLongest = 5 * time.Minute
)

// watched returns the screen of which a request wants the stream, and the request for that screen itself.
func (h *handler) watched(r *http.Request) (s screen, looked *http.Request, err error) {
	at, err := url.Parse(safePath(r.FormValue("at")))
	if err != nil {
		return s, nil, badRequest("at is no path of this page")
	}
	s, is := h.screens()[at.Path]
	if !is || !s.live {
		return s, nil, notFound("at is no live screen")
	}
	looked = r.Clone(r.Context())
	looked.URL, looked.Form, looked.PostForm, looked.MultipartForm = at, nil, nil, nil
	return s, looked, nil
}

// live sends the live part of a screen as server-sent events: "html" when it has changed, then "at" with the time of its
// data, or "stale" while Redis does not answer. "bye" ends the stream of a viewer whose rights have changed, and "again"
// asks the browser to open another.
func (h *handler) live(w http.ResponseWriter, r *http.Request, actor Actor) error {
	s, looked, err := h.watched(r)
	if err != nil {
		return err
	}
	t := s.topic(looked, actor)
	news, stop := h.hub.watch(t)
	defer stop()
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("X-Accel-Buffering", "no")
	stream := &stream{w: w, to: http.NewResponseController(w)}
	_ = stream.to.SetReadDeadline(time.Time{}) // a server's ReadTimeout is for incoming requests, and would end this one
	beat, end := time.NewTicker(h.heartbeat), time.NewTimer(h.longest)
	defer beat.Stop()
	defer end.Stop()
	for {
		send := func() error { return stream.send("beat", "") }
		select {
		case <-r.Context().Done():
			return nil
		case <-end.C:
			_ = stream.send("again", "")
			return nil
		case <-beat.C:
		case <-news:
			send = func() error { return h.sendLive(stream, looked, actor, s, t) }
		}
		if now, ok := h.actor(r); !ok || !sameRights(now, actor) || h.may(actor, looked, s.needs) != nil {
			_ = stream.send("bye", "")
			return nil
		}
		if send() != nil {
			return nil // the viewer has closed the connection, or there is nothing more to see
		}
	}
}

func (h *handler) sendLive(to *stream, r *http.Request, actor Actor, s screen, t topic) error {
	st := h.hub.state(t.key)
	if st.data == nil {
		return nil
	}
	v, err := h.viewOf(r, actor, s, st)
	if err != nil {
		return errors.Join(err, to.send("bye", ""))
	}
	var b bytes.Buffer
	if err := h.templates[s.name].ExecuteTemplate(&b, "livepart", v); err != nil {
		return fmt.Errorf("page: render %s: %w", s.name, err)
	}
	if html := b.String(); html != to.last {
		to.last = html
		if err := to.send("html", html); err != nil {
			return err
		}
	}
	if st.err != nil {
		return to.send("stale", st.at.UTC().Format(time.RFC3339Nano))
	}
	return to.send("at", st.at.UTC().Format(time.RFC3339Nano))
}

type stream struct {
	w    http.ResponseWriter
	to   *http.ResponseController
	last string
}

// lineEnds are those that end a line of a stream, in an event's data too.
var lineEnds = strings.NewReplacer("\r\n", "\n", "\r", "\n")

// send writes an event. If a viewer takes nothing for ten seconds, it fails.
func (s *stream) send(event, data string) error {
	_ = s.to.SetWriteDeadline(time.Now().Add(10 * time.Second)) // not every writer has deadlines
	var b strings.Builder
	b.WriteString("event: " + event + "\n")
	for line := range strings.SplitSeq(lineEnds.Replace(data), "\n") {
		b.WriteString("data: " + line + "\n")
	}
	b.WriteString("\n")
	if _, err := s.w.Write([]byte(b.String())); err != nil {
		return err
	}
	return s.to.Flush()
}
