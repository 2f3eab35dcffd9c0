package page

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"
)

const (
	// mostForm and mostLogin bound the bytes of a form: the sender of a login is not known yet.
	mostForm, mostLogin = 2 << 20, 64 << 10
	// mostOpen is how many requests of one actor are answered at once, the streams of open screens among them.
	mostOpen = 100
)

// openRequests counts the requests that are being answered, by actor. It is safe for concurrent use.
type openRequests struct {
	mu sync.Mutex
	n  map[string]int
}

// enter counts a request until leave is called, and reports whether its actor may have another.
func (o *openRequests) enter(actor string) (leave func(), ok bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.n[actor] >= mostOpen {
		return nil, false
	}
	o.n[actor]++
	return func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		if o.n[actor]--; o.n[actor] == 0 {
			delete(o.n, actor)
		}
	}, true
}

func (h *handler) actor(r *http.Request) (actor Actor, ok bool) {
	switch {
	case h.cfg.Identify != nil:
		actor, ok = h.cfg.Identify(r)
	case h.cfg.Local != "":
		actor, ok = Actor{Name: h.cfg.Local, Role: RoleAdmin}, local(r) && !forwarded(r)
	default:
		if h.cfg.Proxy != nil {
			actor, ok = h.cfg.Proxy.identify(r)
		}
		if !ok && h.cfg.Users != nil {
			if actor, ok = h.user(r); ok && h.cfg.Proxy == nil { // a proxy has groups that the file does not know
				actor = h.cfg.Users.withOwnGroup(actor)
			}
		}
	}
	actor.Via = "page"
	return actor, ok && actor.Name != "" && actor.Role > RoleNone
}

func (h *handler) user(r *http.Request) (Actor, bool) {
	if scheme, text, is := strings.Cut(r.Header.Get("Authorization"), " "); is && strings.EqualFold(scheme, "Bearer") {
		return h.cfg.Users.token(strings.TrimSpace(text))
	}
	session, is := h.sessions.of(r, h.now())
	if !is {
		return Actor{}, false
	}
	return h.cfg.Users.person(session.name, session.hash)
}

// authorized calls a route for actors with the right to it, and refuses other requests or sends them to the login.
func (h *handler) authorized(route route) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		actor, ok := h.actor(r)
		if !ok {
			h.unknown(w, r)
			return
		}
		leave, ok := h.open.enter(actor.Name)
		if !ok {
			w.Header().Set("Retry-After", "10")
			http.Error(w, fmt.Sprintf("%s has %d screens of this page open, which is the most: close some", actor.Name, mostOpen), http.StatusTooManyRequests)
			return
		}
		defer leave()
		if r.URL.Path != "/live" { // which the browser opens by itself, also with no person at it
			h.sessions.use(r, h.now())
		}
		if !readForm(w, r, mostForm) {
			return
		}
		if h.following.own { // its limits, by whose owners rights are checked, may be out of date
			_, _ = h.limits(r.Context()) // what is read next says why they are
		}
		err := h.may(actor, r, route.needs)
		if err == nil {
			err = route.handle(w, r, actor)
		}
		if err != nil {
			h.failed(w, r, actor, err)
		}
	}
}

// unknown sends a request whose actor is not known to the login, or refuses it.
func (h *handler) unknown(w http.ResponseWriter, r *http.Request) {
	switch {
	case h.cfg.Local != "" && forwarded(r):
		http.Error(w, "this request came through a proxy, but here every user of this machine is an admin: "+
			"give the page users (-users, or -page-users of a worker), or a proxy that names the user (-proxy)", http.StatusForbidden)
	case h.cfg.Local != "":
		http.Error(w, "this page is for this machine only: ask for localhost or 127.0.0.1", http.StatusMisdirectedRequest)
	case h.cfg.Proxy != nil && h.cfg.Proxy.sends(r) && !h.cfg.Proxy.named(r):
		http.Error(w, "this page does not answer under the host name of this request: its administrator can add the name with -proxy-host", http.StatusMisdirectedRequest)
	case h.cfg.Users == nil:
		http.Error(w, "the page does not know you, or you have no role: log in at the proxy in front of it, and ask its administrator", http.StatusForbidden)
	case r.Header.Get("Authorization") != "" || r.URL.Path == "/live":
		w.Header().Set("WWW-Authenticate", `Bearer realm="headway"`)
		http.Error(w, "the token is not valid, or the session has ended", http.StatusUnauthorized)
	case r.Method == http.MethodPost: // its body is not read
		h.showLogin(w, r, http.StatusUnauthorized, login{Fault: "Your session has ended, and nothing was done. Log in, go back, and send it again."})
	default:
		http.Redirect(w, r, h.link("/login", "next", r.URL.RequestURI()), http.StatusSeeOther)
	}
}

// readForm reads the query and the whole form of a request, or refuses it if it is larger than most bytes.
func readForm(w http.ResponseWriter, r *http.Request, most int64) bool {
	r.Body = http.MaxBytesReader(w, r.Body, most)
	err := r.ParseForm()
	if err == nil {
		err = r.ParseMultipartForm(most)
	}
	switch {
	case err == nil, errors.Is(err, http.ErrNotMultipart):
		return true
	case errors.As(err, new(*http.MaxBytesError)):
		http.Error(w, "the form is larger than "+number(most>>10)+" KB: log in if your session has ended, or send less", http.StatusRequestEntityTooLarge)
	default:
		http.Error(w, "the request cannot be read: "+err.Error(), http.StatusBadRequest)
	}
	return false
}

type login struct{ Next, Name, Fault string }

func (h *handler) login(w http.ResponseWriter, r *http.Request) {
	next := safePath(r.URL.Query().Get("next")) // FormValue would read a body of any size
	if _, ok := h.actor(r); ok {
		http.Redirect(w, r, h.cfg.Prefix+next, http.StatusSeeOther)
		return
	}
	h.showLogin(w, r, http.StatusOK, login{Next: next})
}

func (h *handler) showLogin(w http.ResponseWriter, r *http.Request, status int, l login) {
	if err := h.render(w, r, status, "login", view{Title: "Log in", Data: l}); err != nil {
		h.failed(w, r, Actor{}, err)
	}
}

func (h *handler) postLogin(w http.ResponseWriter, r *http.Request) {
	if !readForm(w, r, mostLogin) {
		return
	}
	l := login{Next: safePath(r.PostForm.Get("next")), Name: r.PostForm.Get("name")}
	from, browser := h.sender(r), h.cfg.Users.browser(r, l.Name)
	leave, ok := h.guesses.enter(l.Name, from, browser, h.now())
	if !ok {
		w.Header().Set("Retry-After", "10")
		l.Fault = "Too many tries at this name, or from your address. Try again in some seconds."
		h.showLogin(w, r, http.StatusTooManyRequests, l)
		return
	}
	defer leave()
	actor, hash, ok := h.cfg.Users.password(l.Name, r.PostForm.Get("password"))
	if !ok {
		h.log.WarnContext(r.Context(), "page: login refused", "name", l.Name, "from", from)
		l.Fault = "The name or the password is wrong."
		h.showLogin(w, r, http.StatusUnauthorized, l)
		return
	}
	h.log.InfoContext(r.Context(), "page: login", "name", actor.Name, "role", actor.Role.String(), "from", from)
	http.SetCookie(w, cookie(r, h.cfg.Prefix, h.sessions.begin(actor.Name, hash, h.now())))
	if browser == "" {
		http.SetCookie(w, browserCookieOf(r, h.cfg.Prefix, actor.Name, hash))
	}
	http.Redirect(w, r, h.cfg.Prefix+l.Next, http.StatusSeeOther)
}

func (h *handler) logout(w http.ResponseWriter, r *http.Request) {
	h.sessions.end(r)
	http.SetCookie(w, cookie(r, h.cfg.Prefix, ""))
	http.Redirect(w, r, h.cfg.Prefix+"/login", http.StatusSeeOther)
}

// safePath returns a path of the page, so that a login redirects to no other site.
func safePath(path string) string {
	u, err := url.Parse(path)
	if err != nil || u.IsAbs() || u.Host != "" || !strings.HasPrefix(path, "/") || strings.HasPrefix(path, "//") || strings.Contains(path, "\\") {
		return "/"
	}
	return path
}
