%% loop -> hot -> ordinary (75 %), loop -> cold -> ordinary (25 %), which is written in C, and the same with dirty, which runs on
%% a dirty scheduler: another thread.
%%
%%   erlc natives.erl && cc -O1 -g -shared -fPIC -I/usr/lib/erlang/usr/include -o natives.so natives.c
%%   erl -noshell +S 1 -pa . -run natives main [SECONDS]
-module(natives).
-export([main/1, hot/1, cold/1, dirty_hot/1, dirty_cold/1, ordinary/1, dirty/1]).
-on_load(load/0).

load() -> erlang:load_nif("./natives", 0).

ordinary(_) -> erlang:nif_error(not_loaded).
dirty(_) -> erlang:nif_error(not_loaded).

hot(N) ->
    R = ordinary(N * 3),
    R + 1.

cold(N) ->
    R = ordinary(N),
    R + 2.

dirty_hot(N) ->
    R = dirty(N * 3),
    R + 3.

dirty_cold(N) ->
    R = dirty(N),
    R + 4.

main([]) -> main(["4"]);
main([Seconds]) ->
    io:format("ready pid=~s~n", [os:getpid()]),
    loop(erlang:monotonic_time(millisecond) + 1000 * list_to_integer(Seconds), 1).

loop(End, Noise) ->
    case erlang:monotonic_time(millisecond) > End of
        true ->
            halt(0);
        false ->
            %% A tenth to nineteen tenths of 2000, at random: calls of similar length fall into step with a profiler's clock.
            Next = (Noise * 1103515245 + 12345) band 16#7fffffff,
            N = 200 + (Next bsr 8) rem 3601,
            A = hot(N),
            B = cold(N),
            C = dirty_hot(N),
            D = dirty_cold(N),
            loop(End, Next bxor ((A + B + C + D) band 0))
    end.
