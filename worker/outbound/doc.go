// Package outbound carries out tasks of type http: one outbound request a task.
//
// A Handler is an asynq.Handler. What a task may spend is not its business: it
// is meant to run behind the worker's throttle, which charges the task when it
// starts, so that one charge is one call of ProcessTask.
//
// Each promise below names the test that holds it; TestDocNamesItsTests checks
// that the names exist.
//
// # One charge is at most one request sent
//
// net/http's Transport sends a request again by itself when a kept connection
// fails before the answer came, for GET, HEAD, OPTIONS and TRACE and for any
// method with an Idempotency-Key or X-Idempotency-Key header
// (persistConn.shouldRetryRequest and Request.isReplayable in net/http, read at
// Go 1.26; TestControlHTTPClientReplays shows it, and fails when Go changes).
// There is no switch for it, so the last word is at the socket: the first byte
// of a request claims its permit for one connection, and no other connection
// takes a byte for it (TestOneChargeIsAtMostOneRequest,
// TestOneChargeIsAtMostOneRequestOverTLS, TestPermit). The run then fails, and
// asynq's retry, which is charged anew, decides about another request. Only a
// request of which not a byte was taken goes out on another connection within
// the same run (TestUnsentRequestGoesOutOnAnotherConnection). A refused replay
// costs the other kept connections nothing
// (TestRefusedReplayLeavesOtherConnectionsAlone).
//
// HTTP/2 is off, also where a server offers it (TestTLS, TestNoProxyNoHTTP2): its
// client repeats requests by rules of its own (http2shouldRetryRequest), and
// mixes the requests of one connection, so that no written byte could be told to
// belong to one charge. Redirects are not followed (TestRedirectsAreNotFollowed).
//
// # What is sent
//
// The method is one of RFC 9110's or PATCH, or one that Config.AllowMethods names: any other
// word may be a command to a server that does not speak HTTP (TestMethodsAreAList). CONNECT
// opens a tunnel, and TRACE has the answer give credentials back: both are always refused. A
// URL with a raw space, quote, backslash or control character is refused
// (TestBadPayloadSaysWhichField).
//
// # What an answer means
//
// 2xx is success; 408, 425, 429 and 5xx are a *StatusError that asynq retries;
// any other answer is a *StatusError with asynq.SkipRetry (TestStatuses,
// TestStatusErrorText). When to come back is what package upstream reads, never more
// than 24 hours (TestRetryAfter); Config.Told is told of each answer (TestAnswersAreTold). The status alone decides: a body that breaks
// off or does not end in time turns no success into a failure
// (TestBodyThatBreaksOffChangesNothing, TestEndlessAnswerEndsWithTheRun).
//
// A request that got no answer is retried. A run that ends before the answer
// says after how long and for what it waited, and hides neither the deadline nor
// the cancellation and its cause (TestTimeoutSaysHowLongAndForWhat,
// TestTimeoutCoversDialling, TestCancellationIsNotHidden). A context without a
// deadline gets 30 seconds (TestWithoutDeadlineThirtySeconds). A payload that is
// no request is a *PayloadError with asynq.SkipRetry that names the field
// (TestBadPayloadSaysWhichField).
//
// # Connections
//
// Tasks share kept connections (TestOneConnectionForManyTasks). Of an answer's
// body, Config.MaxResponse bytes are read at most (TestHugeAnswerIsCutShort), of
// its header lines 64 KiB (TestHeaderFloodEnds), and nothing is decompressed
// (TestCompressedAnswerStaysCompressed). A server cannot hold a run beyond its
// deadline (TestEndlessAnswerEndsWithTheRun, TestSwitchingProtocolsDoesNotHang).
// Bytes that a server sends behind one answer are never taken for the answer to
// the next task (TestAnswersAreNotMixedUp, TestPermitOfReads).
//
// TLS is 1.2 or newer and certificates are verified against the system's roots
// (TestTLS). No proxy is used, the environment's neither (TestNoProxyNoHTTP2).
//
// # Addresses
//
// Addresses that are not public are refused when the socket connects, after the
// name was resolved: loopback, private, link-local, shared, multicast, reserved
// and the like, in IPv4, in IPv6, and as an IPv4 address inside an IPv6 one
// (TestRefusal, TestRefusalOfTeredo, TestAddressesThatAreRefused,
// TestNamesThatResolveToRefusedAddresses). What is judged is the address that is
// dialled, each time, so that a name cannot change its meaning in between
// (TestRebindingIsRefused); of a name with several addresses the public ones are
// used (TestMixedAnswersUseThePublicOne). Before, hosts go through IDNA's lookup profile, so
// that no resolver sees other digits than we do (TestHostsGoThroughIDNA), and numbers that
// only some systems read as addresses are refused (TestOddSpellingsOfAddressesAreRefused). The
// refusal is a *BlockedError with asynq.SkipRetry. Config.AllowHosts makes
// exceptions, by the host's name as the URL has it (TestAllowHosts, TestParseHosts).
//
// The addresses of the machine's own interfaces are refused in the same way, public ones too
// (TestOwnAddressesAreRefused). They are read when a connection is made and are a second old
// at most; where they cannot be read nothing is dialled (TestOwnAddressesAreFresh).
//
// Config.OnlyHosts and Config.Ports leave less to dial, and are judged before the name is
// resolved (TestOnlyHosts, TestPorts); Config.DenyCIDRs is judged with the address
// (TestDenyCIDRs). All three stand above AllowHosts.
//
// # Secrets
//
// Header values, the URL's userinfo, query and fragment, and the body never stand in an
// error or a log record. What an answer, or an error of net/http, gives back of them is
// replaced by [redacted]: whole, in another case, escaped as JSON, HTML or a URL does it,
// or as two of them do (TestHideEscaped), or any part of eight bytes and more; below four
// bytes only where it stands as a word of its own (TestSecretsNeverStandInErrors,
// TestSecretsNeverStandInPayloadErrors, TestHide, and FuzzHide against a search that knows
// no shortcut). Any white space within counts as one byte. Of the body these are the values, from four bytes on, a part of one from
// sixteen; field names stay readable. What cannot be recognised is not hidden: a secret that
// the API encodes or hashes, or a shorter part of one.
//
// Hiding takes at most 50 ms of a processor, whatever request and answer are. The work is
// proportional to their sizes (TestHidingIsLinear), and ends with the task's context
// (TestHidingEndsWithItsContext). The answer to a request of more than 512 KiB of URL,
// headers and body is not shown, and the error says so (TestOfHugeRequestsNoAnswerIsShown).
//
// Method, scheme, host and path name a request in errors, so they are not secret, but for
// segments of the path that look like keys, as webhooks have them: longer than 20 bytes, with
// letters and digits mixed in 8 bytes or more, or with more than 10 digits (TestShownPath,
// TestPathSecretsNeverStandInErrors). A key of up to 20 letters without a digit looks like a
// word, and is shown. Nothing is printed through package log (TestMain fails if net/http
// does). Debug records hold method, host, status and elapsed_ms (TestDebugRecord).
package outbound
