%% burn.erl's functions, called by a gen_server: another process asks for each call.
%%
%%   erlc burn.erl server.erl && erl -noshell +JPperf true +S 1 -pa . -run server main [SECONDS]
-module(server).
-behaviour(gen_server).
-export([main/1, init/1, handle_call/3, handle_cast/2]).

init([]) -> {ok, 1}.

handle_call(burn, _From, Noise) ->
    %% A tenth to nineteen tenths of 20000, at random: calls of similar length fall into step with a profiler's clock.
    Next = (Noise * 1103515245 + 12345) band 16#7fffffff,
    {reply, burn:outer(2000 + (Next bsr 8) rem 36001), Next}.

handle_cast(_, Noise) -> {noreply, Noise}.

main([]) -> main(["4"]);
main([Seconds]) ->
    {ok, Server} = gen_server:start_link(?MODULE, [], []),
    io:format("ready pid=~s~n", [os:getpid()]),
    ask(Server, erlang:monotonic_time(millisecond) + 1000 * list_to_integer(Seconds)).

ask(Server, End) ->
    case erlang:monotonic_time(millisecond) > End of
        true ->
            halt(0);
        false ->
            gen_server:call(Server, burn, infinity),
            ask(Server, End)
    end.
