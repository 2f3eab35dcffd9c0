// Package page is a web page about running limits. It shows which tasks wait, why and until when, which
// applications have used the limits, and the effect of a change before it is made.
//
//	handler, err := page.New(page.Config{Redis: rdb, Prefix: "/limits", Identify: whoAsks})
//	mux.Handle("/limits/", handler)
//
// The page and the program worker use the same service, which checks the rights, so both answer in the
// same words. The page is one http.Handler. Templates, style and script are embedded, and browsers fetch
// nothing from other hosts. It works without JavaScript, and updates itself with it.
//
// It reads Redis for all viewers together, with at most 50 commands a second in the long run, which actors
// share, and not at all while there are no viewers.
package page
